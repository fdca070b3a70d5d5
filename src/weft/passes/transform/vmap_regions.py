"""Batches of control flow, and of functions with rules of their own.

%y = graph.if %c ({ f }, { g })     →    the same with batched regions, where the batch shares one condition;
                                         both, and a choice of each result, where it has several
%y = graph.loop n turns { f }       →    a loop of batched turns; while any of the batch goes on, those that have
                                         ended keep their state
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from xdsl.ir import Block, Operation, Region, SSAValue

from weft.ir.expr import Size
from weft.ir.types import Tensor, is_float, tensor_of, tensor_type
from weft.ops.control import ControlOp, IfOp, LoopOp, if_else, loop
from weft.ops.custom import CustomOp
from weft.ops.graph import GraphBuilder, YieldOp
from weft.ops.rules import move_dim, zeros


class Batched(Protocol):
    """The ops of a function, appended for a batch: what stands for each value, and which of these are batched."""

    b: GraphBuilder
    size: Size
    values: dict[SSAValue, SSAValue]
    batched: set[SSAValue]

    def inside(self, b: GraphBuilder) -> Self: ...

    def append(self, op: Operation) -> None: ...

    def of(self, value: SSAValue) -> SSAValue: ...

    def set(self, value: SSAValue, found: SSAValue, is_batched: bool) -> None: ...


def batch_control(batch: Batched, op: ControlOp) -> None:
    """Append control flow of which some operand is batched."""
    if isinstance(op, LoopOp):
        _turns(batch, op)
    elif op.operands[0] in batch.batched:
        _both(batch, op)
    else:
        assert isinstance(op, IfOp)
        _branches(batch, op)


def _region(
    batch: Batched, b: GraphBuilder, block: Block, arguments: Sequence[SSAValue], flags: Sequence[bool]
) -> tuple[Batched, Sequence[SSAValue]]:
    """A region's ops at the builder's place, for the batch, and the values that it yields, by their old names."""
    inner = batch.inside(b)
    for old, new, flag in zip(block.args, arguments, flags, strict=True):
        inner.set(old, new, flag)
    for op in block.ops:
        if not isinstance(op, YieldOp):
            inner.append(op)
    last = block.last_op
    assert isinstance(last, YieldOp), "verified"
    return inner, last.operands


def _tried(batch: Batched, block: Block, arguments: Sequence[SSAValue], flags: Sequence[bool]) -> list[bool]:
    """Which of the values that a region yields are batched: found by appending it to nothing."""
    scratch = Block()
    inner, yielded = _region(batch, GraphBuilder(scratch), block, arguments, flags)
    found = [value in inner.batched for value in yielded]
    for op in reversed(list(scratch.ops)):
        op.detach()
        op.erase()
    return found


def _captured(batch: Batched, op: ControlOp) -> tuple[list[SSAValue], list[bool]]:
    return [batch.values[x] for x in op.captures], [x in batch.batched for x in op.captures]


def _branches(batch: Batched, op: IfOp) -> None:
    values, flags = _captured(batch, op)
    sides = [_tried(batch, region.block, values, flags) for region in op.bodies]
    results = [any(each) for each in zip(*sides, strict=True)]

    def branch(region: Region) -> Callable[[GraphBuilder], list[SSAValue]]:
        def build(b: GraphBuilder) -> list[SSAValue]:
            inner, yielded = _region(batch, b, region.block, values, flags)
            return [inner.of(x) if flag else inner.values[x] for x, flag in zip(yielded, results, strict=True)]

        return build

    then, otherwise = op.bodies
    found = if_else(batch.b, batch.values[op.operands[0]], branch(then), branch(otherwise))
    for old, new, flag in zip(op.results, found, results, strict=True):
        batch.set(old, new, flag)


def _both(batch: Batched, op: ControlOp) -> None:
    values, flags = _captured(batch, op)
    sides: list[list[SSAValue]] = []
    for region in op.bodies:
        inner, yielded = _region(batch, batch.b, region.block, values, flags)
        sides.append([inner.of(x) for x in yielded])
    condition = batch.values[op.operands[0]]
    for old, yes, no in zip(op.results, *sides, strict=True):
        batch.set(old, chosen(batch.b, condition, yes, no), True)


def chosen(b: GraphBuilder, condition: SSAValue, yes: SSAValue, no: SSAValue) -> SSAValue:
    """Of each of the batch one of two, by a condition for each."""
    (size,) = b.tensor(condition).shape
    aligned = b.reshape(condition, shape=(size, *(1 for _ in b.tensor(yes).shape[1:])))
    return b.where(aligned, yes, no)


def _turns(batch: Batched, op: LoopOp) -> None:
    (region,) = op.bodies
    block, first, carried = region.block, int(op.conditional), len(op.starts)
    captures, captured = _captured(batch, op)
    sliced = [x in batch.batched for x in op.wholes]
    flags = [x in batch.batched for x in op.starts]
    apart = op.condition is not None and op.condition in batch.batched
    b = batch.b
    wholes = [move_dim(b, batch.values[x], 0, 1) if flag else batch.values[x] for x, flag in _pairs(op.wholes, sliced)]

    while True:  # what is carried is batched where a turn makes it so
        tried = _tried_turn(batch, op, wholes, sliced, flags, captures, captured)
        apart = apart or (op.conditional and tried[0])
        grown = [apart or old or new for old, new in zip(flags, tried[first : first + carried], strict=True)]
        stacked = [apart or each for each in tried[first + carried :]]
        if grown == flags:
            break
        flags = grown

    def turn(b: GraphBuilder, index: SSAValue, before: Sequence[SSAValue], slices: Sequence[SSAValue]) -> Any:
        going, states = (before[0], before[1:]) if apart else (None, before)
        inner, yielded = _region(
            batch, b, block, [index, *states, *slices, *captures], [False, *flags, *sliced, *captured]
        )
        after = [inner.of(x) if f else inner.values[x] for x, f in _pairs(yielded[first : first + carried], flags)]
        kept = [inner.of(x) if f else inner.values[x] for x, f in _pairs(yielded[first + carried :], stacked)]
        if going is None:
            return (after, kept, inner.values[yielded[0]]) if op.conditional else (after, kept)
        after = [chosen(b, going, new, old) for new, old in zip(after, states, strict=True)]
        kept = [chosen(b, going, new, zeros(b, new)) for new in kept]
        onward = b.logical_and(going, inner.of(yielded[0]))
        return [onward, *after], kept, b.any(onward, dims=(0,), keep=False)

    starts = [batch.of(x) if f else batch.values[x] for x, f in _pairs(op.starts, flags)]
    condition = op.condition
    if condition is not None:
        going = batch.of(condition) if apart else batch.values[condition]
        starts = [going, *starts] if apart else starts
        condition = b.any(going, dims=(0,), keep=False) if apart else going
    finals, stacks = loop(
        b,
        turn,
        starts,
        wholes,
        trip_count=op.trip_count,
        directions=op.scanned,
        stack_directions=op.stacked,
        condition=condition,
    )
    for old, new, flag in zip(op.finals, finals[int(apart) :], flags, strict=True):
        batch.set(old, new, flag)
    for old, new, flag in zip(op.stacks, stacks, stacked, strict=True):
        batch.set(old, move_dim(b, new, 1, 0) if flag else new, flag)


def _tried_turn(
    batch: Batched,
    op: LoopOp,
    wholes: Sequence[SSAValue],
    sliced: Sequence[bool],
    flags: Sequence[bool],
    captures: Sequence[SSAValue],
    captured: Sequence[bool],
) -> list[bool]:
    """Which of the values that a turn yields are batched, where its states are batched by `flags`."""
    (region,) = op.bodies
    block, carried = region.block, len(op.starts)
    taken = block.args[: 1 + carried + len(wholes)]
    shapes = [False, *flags, *sliced]
    scratch = Block(arg_types=[_type(batch, value, flag) for value, flag in zip(taken, shapes, strict=True)])
    return _tried(batch, block, [*scratch.args, *captures], [*shapes, *captured])


def _type(batch: Batched, value: SSAValue, flag: bool) -> Any:
    tensor = tensor_of(value.type)
    return tensor_type(Tensor(tensor.dtype, (batch.size, *tensor.shape))) if flag else value.type


def _pairs(values: Sequence[SSAValue], flags: Sequence[bool]) -> list[tuple[SSAValue, bool]]:
    return list(zip(values, flags, strict=True))


def batched_custom(batch: Batched, op: CustomOp, flags: Sequence[bool]) -> CustomOp:
    """A function of a batch: its body and its rules are those of the batch, each."""
    own, results = [is_float(x) for x in op.own], [is_float(x) for x in op.results]
    extra = {"vjp": len(op.results) + sum(results), "jvp": sum(own)}
    whole = [flag for flag, moving in zip(flags, own, strict=False) if moving]
    rules = {
        each.data: _batched_block(
            batch,
            region.block,
            [*flags, *(True for _ in range(extra[each.data]))],
            whole if each.data == "vjp" else [True] * sum(results),
        )
        for each, region in zip(op.rules, list(op.bodies)[1:], strict=True)
    }
    body = _batched_block(batch, op.body, flags, [True] * len(op.results))
    operands = [batch.values[operand] for operand in op.operands]
    return CustomOp.make(operands, body, rules, op.captured.value.data, location=op.location)


def _batched_block(batch: Batched, block: Block, flags: Sequence[bool], wanted: Sequence[bool]) -> Block:
    """A region for a batch; what it yields is batched where that is `wanted`, and summed over the batch elsewhere."""
    made = Block(arg_types=[_type(batch, value, flag) for value, flag in zip(block.args, flags, strict=True)])
    b = GraphBuilder(made)
    inner, yielded = _region(batch, b, block, made.args, flags)
    found = [
        inner.of(value) if flag else b.sum(inner.of(value), dims=(0,), keep=False)
        for value, flag in zip(yielded, wanted, strict=True)
    ]
    made.add_op(YieldOp.create(operands=found))
    return made
