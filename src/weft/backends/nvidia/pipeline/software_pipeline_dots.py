"""Software-pipelined dots: those of what was made of another dot are done an iteration later, beside the next
softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.index_slices import ops_behind
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import Size, floordiv, maximum, minimum, substitute, symbol, symbols_of
from weft.tile import dialect as tile
from weft.tile import pointer_ops

_AWAY = 1 << 32
"""More than any place along an axis."""


@dataclass(frozen=True)
class SoftwarePipelineDots(KernelPass):
    """Software-pipelined dots: those of what was made of another dot are done an iteration later, beside the next
    softmax.

    tile.for %i carrying %sum {                          tile.for %i carrying %kept, %p {
      %s = tile.dot %q, keys of %i                         %s = tile.dot %q, keys of %i
      %p, %a = powers of %s                                %sum = tile.dot %p, values of the iteration before, %kept
      yield tile.dot %p, values of %i, %sum * %a }   →     %p, %a = powers of %s
                                                           yield %sum * %a, %p }
                                                         tile.dot %p, values of the last iteration, %kept

    Both dots are begun one after the other, and the second runs while powers are raised of the first. In the first
    iteration there is nothing before: TMA is told a place in front of the tensor, and brings zeros.
    """

    name: ClassVar[str] = "software_pipeline_dots"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        found = any(_only_delayed(loop) for loop in _loops(kernel))
        return True if found else Refused("no loop has one dot that can wait, of what was made of another dot")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for loop in _loops(kernel):
            if (found := _only_delayed(loop)) is not None:
                _rotate(loop, found)


def _loops(kernel: tile.KernelOp) -> list[tile.ForOp]:
    return [op for op in kernel.walk() if isinstance(op, tile.ForOp)]


@dataclass
class _Delayed:
    """A dot that can wait: the op that narrows its left operand, the load of its right one, where its result is
    carried, and what the dot is computed from that its left operand is made of, that one last."""

    dot: tile.DotOp
    narrows: tile.MapOp
    load: tile.LoadOp
    slot: int
    early: list[Operation]


def _only_delayed(loop: tile.ForOp) -> _Delayed | None:
    """The dot of a loop that can wait, if that is one."""
    found = [each for op in loop.block.ops if isinstance(op, tile.DotOp) and (each := _delayed(loop, op))]
    return found[0] if len(found) == 1 else None


def _delayed(loop: tile.ForOp, dot: tile.DotOp) -> _Delayed | None:
    narrows, load, uses = dot.a.owner, dot.b.owner, list(dot.out.uses)
    if not isinstance(narrows, tile.MapOp) or not isinstance(load, tile.LoadOp) or dot.accumulator is None:
        return None
    if len(uses) != 1 or not isinstance(uses[0].operation, tile.YieldOp) or load.parent is not loop.block:
        return None
    if isinstance(dot.accumulator.owner, tile.DotOp):
        return None  # that one runs beside what is made, and takes as long
    if len(list(dot.a.uses)) > 1 or len(list(dot.b.uses)) > 1 or narrows.parent is not loop.block:
        return None
    if any(isinstance(op, tile.LoadOp) and op is not load and op.pointer is load.pointer for op in loop.block.ops):
        return None  # what this iteration reads anyway would be brought again in the next
    if any(isinstance(op, tile.ScatterOp | tile.StoreOp | pointer_ops.AtomicOp) or op.regions for op in loop.block.ops):
        return None
    behind = _behind(loop, [dot.a])
    first = next((op for op in loop.block.ops if isinstance(op, tile.DotOp) and op in behind), None)
    if first is None:
        return None
    slot = uses[0].index
    wanted = _behind(loop, [first.out])
    early = [op for op in loop.block.ops if op in wanted]
    carried = loop.block.args[1 + slot]
    if any(carried in op.operands for op in early) or _before_it(loop, load) is None:
        return None
    return _Delayed(dot, narrows, load, slot, early)


def _behind(loop: tile.ForOp, values: Sequence[SSAValue]) -> set[Operation]:
    """The ops of a loop's turn that values are computed by."""
    found: set[Operation] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, OpResult) and value.op.parent is loop.block and value.op not in found:
            found.add(value.op)
            left += value.op.operands
    return found


def _before_it(loop: tile.ForOp, load: tile.LoadOp) -> int | None:
    """The operand of a load that is the loop's variable, if nothing else of it changes from iteration to iteration but
    a place along the axis that the dot sums over."""
    variable = loop.block.args[0]
    numbers = [number for number, index in enumerate(load.indices) if index is variable]
    others = ops_behind(index for index in load.indices if index is not variable)
    if len(numbers) != 1 or others is None or any(variable in op.operands for op in others):
        return None
    if len(load.indices) + len(loop.indices) == 1:
        return None
    assert load.starts is not None and load.sides is not None
    name = f"d{numbers[0]}"
    moves = name in symbols_of(load.starts.data[0])
    fixed = (*load.strides.data, *load.sides.data, *load.starts.data[1:], _rest(load))
    return numbers[0] if moves and not any(name in symbols_of(size) for size in fixed) else None


def _rest(load: tile.LoadOp) -> Size:
    """What of an offset is not a place along an axis."""
    assert load.starts is not None
    pairs = zip(load.starts.data, load.strides.data, strict=True)
    return load.offset.data[0] - sum((start * stride for start, stride in pairs), start=0)


def _moved(loop: tile.ForOp, load: tile.LoadOp, last: bool) -> list[Operation]:
    """A load as the iteration before made it, or the last iteration, with the ops in the loop that its indices come
    from.
    """
    number = _before_it(loop, load)
    assert number is not None and load.starts is not None
    mapping: dict[SSAValue, SSAValue] = {}
    others = ops_behind(index for index in load.indices if index is not loop.block.args[0]) or set()
    ops: list[Operation] = [op.clone(mapping) for op in loop.block.ops if op in others]
    count = len(load.indices)
    renamed: dict[str, Size] = {f"d{i}": symbol(f"d{count + i}") for i in range(len(loop.indices))}
    lower, upper, step = (substitute(size, renamed) for size in loop.bounds.data)
    variable: Size = symbol(f"d{number}")
    if last:
        turns = maximum(0, floordiv(upper - lower + step - 1, step))
        before, passed = lower + (turns - 1) * step, turns
    else:
        before, passed = variable - step, variable - lower
    rows = tile.tile_type(load.out).sizes[0]
    start = minimum(substitute(load.starts.data[0], {f"d{number}": before}), passed * _AWAY - rows)
    starts = (start, *load.starts.data[1:])
    extent = minimum(substitute(load.extents.data[0], {f"d{number}": before}), maximum(0, start + rows))
    offset = _rest(load) + sum((s * t for s, t in zip(starts, load.strides.data, strict=True)), start=0)
    moved = load.clone(mapping)
    indices = [*moved.indices, *loop.indices]
    if last:  # nothing is left of the loop's variable: any other index may stand there
        indices[number] = next(index for index in indices if index is not loop.block.args[0])
    moved.operands = [moved.pointer, *indices]
    moved.starts, moved.offset = tile.Sizes(starts), tile.Sizes((offset,))
    moved.extents = tile.Sizes((extent, *load.extents.data[1:]))
    return [*ops, moved]


def _rotate(loop: tile.ForOp, delayed: _Delayed) -> None:
    powers = delayed.narrows.args[0]
    parent = loop.parent_block()
    assert parent is not None and delayed.dot.accumulator is not None
    nothing = tile.ConstantOp.make(0.0, tile.tile_type(powers))
    parent.insert_op_before(nothing, loop)
    turns = tile.ForOp.make(loop.bounds, loop.indices, [*loop.initial, nothing.out])
    turns.location = loop.location
    parent.insert_op_before(turns, loop)
    block, mapping = turns.block, dict[SSAValue, SSAValue](zip(loop.block.args, turns.block.args, strict=False))
    kept = block.args[1 + delayed.slot]
    weights = delayed.narrows.clone({powers: block.args[-1]})
    block.add_ops([weights, *(op.clone(mapping) for op in delayed.early)])
    moved = _moved(loop, delayed.load, last=False)
    moved[-1].operands = [mapping.get(operand, operand) for operand in moved[-1].operands]
    summed = tile.DotOp.create(operands=[weights.out, moved[-1].results[0], kept], result_types=[delayed.dot.out.type])
    block.add_ops([*moved, summed])
    mapping[loop.block.args[1 + delayed.slot]] = summed.out
    done = {*delayed.early, delayed.dot, delayed.narrows, delayed.load}
    for op in loop.block.ops:
        if isinstance(op, tile.YieldOp):
            results = list(op.operands)
            results[delayed.slot] = delayed.dot.accumulator
            values = [mapping.get(value, value) for value in (*results, powers)]
            block.add_op(tile.YieldOp.create(operands=values))
        elif op not in done:
            block.add_op(op.clone(mapping))
    last = _moved(loop, delayed.load, last=True)
    weights = delayed.narrows.clone({powers: turns.results[-1]})
    final = tile.DotOp.create(
        operands=[weights.out, last[-1].results[0], turns.results[delayed.slot]], result_types=[summed.out.type]
    )
    parent.insert_ops_before([weights, *last, final], loop)
    for number, result in enumerate(loop.results):
        result.replace_all_uses_with(final.out if number == delayed.slot else turns.results[number])
    loop.detach()
    loop.erase()
