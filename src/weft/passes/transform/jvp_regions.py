"""Forward-mode derivatives of control flow: each region computes tangents beside its values.

    %y = graph.if %c ({ f }, { g })     →    %y, %t = graph.if %c ({ f and its tangents }, { g and its tangents })
    %y = graph.loop n turns { f }       →    %y, %t = graph.loop n turns { f and its tangents, which are carried, too }

The op with tangents takes the other's place. Loops that only a condition ends have tangents, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from weft.ir.locations import sourced
from weft.ir.types import is_float
from weft.ops.control import ControlOp, IfOp, LoopOp, if_else, loop
from weft.ops.graph import GraphBuilder, YieldOp
from weft.ops.rules import zeros

Push = Callable[[GraphBuilder, Operation, dict[SSAValue, SSAValue]], Sequence[SSAValue]]
"""Takes tangents through an op: gives its results, which are another op's where that took its place."""


def push_control(b: GraphBuilder, op: ControlOp, tangents: dict[SSAValue, SSAValue], push: Push) -> Sequence[SSAValue]:
    """Put an op with tangents in the place of control flow; `push` takes them through one op of a region."""
    if isinstance(op, IfOp):
        values, found = _branches(b, op, tangents, push)
    else:
        assert isinstance(op, LoopOp)
        values, found = _turns(b, op, tangents, push)
    moving = [new for new in values if is_float(new)]
    tangents.update(zip(moving, found, strict=True))
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
    return values


def _branches(
    b: GraphBuilder, op: IfOp, tangents: dict[SSAValue, SSAValue], push: Push
) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
    def branch(region: Region) -> Callable[[GraphBuilder], list[SSAValue]]:
        def build(inner: GraphBuilder) -> list[SSAValue]:
            yielded, known = _pushed(inner, region.block, op.captures, tangents, push)
            return [*yielded, *_of(inner, yielded, known)]

        return build

    then, otherwise = op.bodies
    found = if_else(b, op.operands[0], branch(then), branch(otherwise))
    return found[: len(op.results)], found[len(op.results) :]


def _turns(
    b: GraphBuilder, op: LoopOp, tangents: dict[SSAValue, SSAValue], push: Push
) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
    (region,) = op.bodies
    carried, first = len(op.starts), int(op.conditional)
    states = [n for n, value in enumerate(op.starts) if is_float(value)]
    moving = [n for n, value in enumerate(op.wholes) if value in tangents]
    seeds = [n for n, value in enumerate(op.stacks) if is_float(value)]

    def turn(
        inner: GraphBuilder, index: SSAValue, before: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]] | tuple[list[SSAValue], list[SSAValue], SSAValue]:
        values, given = before[:carried], slices[: len(op.wholes)]
        known = dict(tangents)
        known.update(zip((values[n] for n in states), before[carried:], strict=True))
        known.update(zip((given[n] for n in moving), slices[len(op.wholes) :], strict=True))
        yielded, known = _pushed(inner, region.block, [index, *values, *given, *op.captures], known, push)
        after, stacked = yielded[first : first + carried], yielded[first + carried :]
        onward = [*after, *_of(inner, [after[n] for n in states], known)]
        kept = [*stacked, *_of(inner, [stacked[n] for n in seeds], known)]
        return (onward, kept, yielded[0]) if op.conditional else (onward, kept)

    starts = [op.starts[n] for n in states]
    finals, stacks = loop(
        b,
        turn,
        [*op.starts, *(tangents[x] if x in tangents else zeros(b, x) for x in starts)],
        [*op.wholes, *(tangents[op.wholes[n]] for n in moving)],
        trip_count=op.trip_count,
        directions=[*op.scanned, *(op.scanned[n] for n in moving)],
        stack_directions=[*op.stacked, *(op.stacked[n] for n in seeds)],
        condition=op.condition,
    )
    values = [*finals[:carried], *stacks[: len(op.stacks)]]
    return values, [*finals[carried:], *stacks[len(op.stacks) :]]


def _pushed(
    b: GraphBuilder,
    block: Block,
    arguments: Sequence[SSAValue],
    tangents: dict[SSAValue, SSAValue],
    push: Push,
) -> tuple[list[SSAValue], dict[SSAValue, SSAValue]]:
    """A region's ops at the builder's place, each with its tangents: what they yield, and all tangents."""
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, arguments, strict=True))
    known = dict(tangents)
    for op in block.ops:
        if isinstance(op, YieldOp):
            break
        copy = b.insert(op.clone(value_mapper=values))
        with sourced(op.location):
            values.update(zip(op.results, push(b, copy, known), strict=True))
    last = block.last_op
    assert isinstance(last, YieldOp), "verified"
    return [values[operand] for operand in last.operands], known


def _of(b: GraphBuilder, values: Sequence[SSAValue], tangents: dict[SSAValue, SSAValue]) -> list[SSAValue]:
    return [tangents[x] if x in tangents else zeros(b, x) for x in values if is_float(x)]
