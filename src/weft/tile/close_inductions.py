"""Carried tiles that grow by the same amount in every iteration of a loop are computed from the number of the
iteration.

    %r = for %i = 0 to n step 1 carrying (%p = %start) {        for %i = 0 to n step 1 {
      use %p                                              →       use (%start + %i * %step)
      yield %p + %step                                          }
    }                                                           %r = %start + n * %step

Pointers that a loop moves on are like that. What they point to in each iteration, and how neighbouring elements lie,
can then be read off, as with pointers that are computed in place. What a loop only hands on is what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Size, floordiv, maximum, symbol
from weft.ir.types import DType, i64
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile

_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, collective_ops.ViewOp)


def close_inductions(kernel: tile.KernelOp) -> None:
    """Rewrite the loops of a kernel, inner ones first."""
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    for loop in reversed(loops):
        _close(loop)


def _close(loop: tile.ForOp) -> None:
    yielded = loop.block.last_op
    assert isinstance(yielded, tile.YieldOp)
    closed: list[int] = []
    lower, upper, step = loop.bounds.data
    variable = symbol(f"d{len(loop.indices)}")
    turn: Size = floordiv(variable - lower, step)
    turns: Size = maximum(0, floordiv(upper - lower + step - 1, step))
    for number, (argument, value) in enumerate(zip(loop.block.args[1:], yielded.operands, strict=True)):
        if value is argument:
            argument.replace_all_uses_with(loop.initial[number])
            loop.results[number].replace_all_uses_with(loop.initial[number])
            closed.append(number)
            continue
        added = _added(argument, value)
        if added is None or not tile.tile_type(argument).dtype.is_integer or not _is_invariant(added, loop):
            continue
        _hoist(added, loop)
        start = loop.initial[number]
        first, parent = loop.block.first_op, loop.parent_block()
        assert first is not None and parent is not None
        times = _times(added, loop)
        count = turn if times is None else (variable - lower) * times
        one = added if times is None else None
        here = _grown(start, one, count, [*loop.indices, loop.block.args[0]])
        loop.block.insert_ops_before(here, first)
        argument.replace_all_uses_with(here[-1].results[0])
        after = _grown(start, added, turns, loop.indices)
        parent.insert_ops_after(after, loop)
        loop.results[number].replace_all_uses_with(after[-1].results[0])
        closed.append(number)
    if closed:
        _without(loop, closed)


def _added(argument: SSAValue, value: SSAValue) -> SSAValue | None:
    """What is added to a carried tile in an iteration."""
    if not isinstance(value, OpResult) or not isinstance(value.op, tile.MapOp) or value.op.function.data != "add":
        return None
    left, right = value.op.args
    return right if left is argument else left if right is argument else None


def _is_invariant(value: SSAValue, loop: tile.ForOp) -> bool:
    if not loop.is_ancestor(value.owner):
        return True
    if not isinstance(value, OpResult) or not isinstance(value.op, _PURE):
        return False
    operands: Sequence[SSAValue] = value.op.operands
    return all(_is_invariant(operand, loop) for operand in operands)


def _hoist(value: SSAValue, loop: tile.ForOp) -> None:
    """Move what a value is computed from to before a loop."""
    if not loop.is_ancestor(value.owner):
        return
    assert isinstance(value, OpResult)
    for operand in value.op.operands:
        _hoist(operand, loop)
    parent = loop.parent_block()
    assert parent is not None
    value.op.detach()
    parent.insert_op_before(value.op, loop)


def _times(added: SSAValue, loop: tile.ForOp) -> int | None:
    """How often a known number that is added contains the loop's step: then no iterations need be counted."""
    step, number = loop.bounds.data[2], _number(added)
    if not isinstance(step, int):
        source = loop.indices[int(str(step)[1:])] if str(step)[1:].isdigit() else None
        made = source.op if isinstance(source, OpResult) else None
        known = _number(made.value) if isinstance(made, pointer_ops.IndexOp) else None
        if known is None:
            return None
        step = known
    return number // step if number is not None and step > 0 and number % step == 0 else None


def _number(value: SSAValue) -> int | None:
    """The integer that a tile is full of."""
    if isinstance(value, OpResult) and isinstance(value.op, tile.ConstantOp):
        number = from_attribute(value.op.value)
        return number if isinstance(number, int) else None
    return None


def _grown(start: SSAValue, added: SSAValue | None, turns: Size, indices: Sequence[SSAValue]) -> list[Operation]:
    """Ops for `start + turns * added`, or for `start + turns`."""
    type_ = tile.tile_type(start)
    count = tile.PositionOp.create(
        operands=list(indices),
        attributes={"offset": tile.Sizes((turns,)), "strides": tile.Sizes(()), "extents": tile.Sizes(())},
        result_types=[tile.TileType.of((), i64)],
    )
    ops: list[Operation] = [count]
    if type_.dtype != i64:
        ops.append(_map("cast", ops[-1].results, type_.dtype, source=i64, target=type_.dtype))
    if type_.sizes:
        ops.append(collective_ops.ViewOp.make(ops[-1].results[0], type_.sizes, 0, (0,) * len(type_.sizes)))
    if added is not None:
        ops.append(_map("mul", [ops[-1].results[0], added], type_.dtype))
    ops.append(_map("add", [start, ops[-1].results[0]], type_.dtype))
    return ops


def _map(function: str, operands: Sequence[SSAValue], dtype: DType, **params: DType) -> tile.MapOp:
    type_ = tile.TileType.of(tile.tile_type(operands[0]).sizes, dtype)
    attributes = {"function": StringAttr(function), **{name: to_attribute(value) for name, value in params.items()}}
    return tile.MapOp.create(operands=list(operands), attributes=attributes, result_types=[type_])


def _without(loop: tile.ForOp, closed: Sequence[int]) -> None:
    """Put a loop in the place of this one that carries less."""
    left = [number for number in range(len(loop.results)) if number not in closed]
    block, yielded, parent = loop.block, loop.block.last_op, loop.parent_block()
    assert yielded is not None and parent is not None
    results = [yielded.operands[number] for number in left]
    yielded.detach()
    yielded.erase()
    block.add_op(tile.YieldOp.create(operands=results))
    for number in reversed(closed):
        block.erase_arg(block.args[number + 1])
    initial = [loop.initial[number] for number in left]
    region = loop.detach_region(loop.body)
    fresh = tile.ForOp.build(
        operands=[list(loop.indices), initial],
        result_types=[[value.type for value in initial]],
        attributes={"bounds": loop.bounds},
        regions=[region],
    )
    fresh.location = loop.location
    parent.insert_op_before(fresh, loop)
    for number, result in zip(left, fresh.results, strict=True):
        loop.results[number].replace_all_uses_with(result)
    loop.detach()
    loop.erase()
    _drop_dead(block)


def _drop_dead(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if isinstance(op, _PURE) and not op.results[0].uses:
            op.detach()
            op.erase()
