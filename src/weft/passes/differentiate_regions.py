"""Gradients of control flow: a branch of gradients, and a loop in the other direction.

    %y = graph.if %c ({ f }, { g })        →     %gx = graph.if %c ({ the gradient of f }, { the gradient of g })
    %y = graph.loop n turns { f }          →     %s = graph.loop n turns { f, with all states stacked }
                                                 %gx = graph.loop n turns, backwards { the gradient of f at a state }

A turn's gradient computes the turn again from the state that it began with; what is captured sums up over all turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from xdsl.ir import Block, Operation, Region, SSAValue

from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, i64, is_float, tensor_of, tensor_type
from weft.ops.control import ControlOp, IfOp, LoopOp, if_else, loop
from weft.ops.graph import GraphBuilder, YieldOp
from weft.ops.rules import size_value, zeros
from weft.passes.recompute import ops_after


class Gradients(Protocol):
    """The gradients found so far, of each value that a result depends on."""

    b: GraphBuilder
    gradients: dict[SSAValue, SSAValue]

    def add(self, value: SSAValue, gradient: SSAValue) -> None: ...

    def propagate(self, op: Operation) -> None: ...

    def of(self, values: Iterable[SSAValue]) -> list[SSAValue]: ...


def keep_histories(block: Block) -> None:
    """Let the loops of a block, which is going to be differentiated, stack their states."""
    for op in list(block.ops):
        if isinstance(op, LoopOp) and not op.conditional:
            _with_history(op)


def _with_history(op: LoopOp) -> LoopOp:
    """The loop with one more stack for each state: what it was when each turn began. It takes the op's place.

    What turns only add to has no stack: its gradient is the same, whatever it is.
    """
    (region,) = op.bodies
    block = region.block
    kept = [n for n in range(len(op.starts)) if n not in _sums(op)]
    last = block.last_op
    assert isinstance(last, YieldOp), "verified"
    last.operands = [*last.operands, *(block.args[1 + n] for n in kept)]
    types = [tensor_of(op.starts[n].type) for n in kept]
    stacks = [tensor_type(Tensor(each.dtype, (op.trip_count, *each.shape))) for each in types]
    made = LoopOp.create(
        operands=list(op.operands),
        result_types=[*op.result_types, *stacks],
        attributes={**op.attributes, "stacked": to_attribute((*op.stacked, *(1 for _ in stacks)))},
        regions=[op.detach_region(region)],
        location=op.location,
    )
    parent = op.parent
    assert parent is not None, "in a function"
    parent.insert_op_before(made, op)
    for old, new in zip(op.results, made.results, strict=False):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
    return made


def _sums(op: LoopOp) -> set[int]:
    """The places of states that each turn adds to, and does nothing else with."""
    (region,) = op.bodies
    last = region.block.last_op
    assert isinstance(last, YieldOp), "verified"
    found: set[int] = set()
    for number, after in enumerate(last.operands[: len(op.starts)]):
        before, made = region.block.args[1 + number], after.owner
        is_sum = isinstance(made, Operation) and made.name == "graph.add" and before in made.operands
        if is_sum and before.type == after.type and all(sum(1 for _ in each.uses) == 1 for each in (before, after)):
            found.add(number)
    return found


def result_gradients(tape: Gradients, op: ControlOp) -> dict[SSAValue, SSAValue]:
    """The gradients of the results of control flow; zeros where no result depends on one."""
    grads: dict[SSAValue, SSAValue] = {}
    for result in filter(is_float, op.results):
        known = tape.gradients.get(result)
        grads[result] = zeros(tape.b, result) if known is None else known
    return grads


def propagate_control(tape: Gradients, op: ControlOp, make: Callable[[GraphBuilder], Gradients]) -> None:
    """Take the gradients of the results of branches, or of a number of turns, to its operands."""
    grads = result_gradients(tape, op)
    if isinstance(op, IfOp):
        _branches(tape, op, grads, make)
    else:
        assert isinstance(op, LoopOp) and not op.conditional, "`differentiate_while` has those with a condition"
        _turns(tape, op, grads, make)


def _branches(
    tape: Gradients, op: IfOp, grads: Mapping[SSAValue, SSAValue], make: Callable[[GraphBuilder], Gradients]
) -> None:
    wanted = captured_floats(op)

    def branch(region: Region) -> Callable[[GraphBuilder], list[SSAValue]]:
        def build(b: GraphBuilder) -> list[SSAValue]:
            values: dict[SSAValue, SSAValue] = dict(zip(region.block.args, op.captures, strict=True))
            yielded, inner = again(b, region.block, values, make)
            for result, value in zip(op.results, yielded, strict=True):
                if result in grads:
                    inner.add(value, grads[result])
            return taken_back(b, inner, [op.captures[n] for n in wanted])

        return build

    then, otherwise = op.bodies
    found = if_else(tape.b, op.operands[0], branch(then), branch(otherwise))
    for place, gradient in zip(wanted, found, strict=True):
        tape.add(op.captures[place], gradient)


def _turns(
    tape: Gradients, op: LoopOp, grads: Mapping[SSAValue, SSAValue], make: Callable[[GraphBuilder], Gradients]
) -> None:
    (region,) = op.bodies
    block, carried = region.block, len(op.starts)
    sums = _sums(op)
    kept = [n for n in range(carried) if n not in sums]
    own = len(op.stacks) - len(kept)
    stacks, history = op.stacks[:own], op.stacks[own:]
    directions = op.stacked[: len(stacks)]
    states = [n for n, value in enumerate(op.starts) if is_float(value)]
    seeds = [n for n, value in enumerate(stacks) if is_float(value)]
    wholes = [n for n, value in enumerate(op.wholes) if is_float(value)]
    captures = captured_floats(op)

    def turn(
        b: GraphBuilder, index: SSAValue, grads: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        known = dict(zip(kept, slices, strict=False))
        before = [known[n] if n in known else zeros(b, value) for n, value in enumerate(op.starts)]
        given, out = slices[len(kept) : len(kept) + len(op.wholes)], slices[-len(seeds) :]
        number = b.sub(size_value(b, op.trip_count - 1, i64), index)
        arguments = [number, *before, *given, *op.captures]
        yielded, inner = again(b, block, dict(zip(block.args, arguments, strict=True)), make)
        for place, seed in zip(states, grads[: len(states)], strict=True):
            inner.add(yielded[place], seed)
        for place, seed in zip(seeds, out if seeds else [], strict=True):
            inner.add(yielded[carried + place], seed)
        sources = [*(before[n] for n in states), *(given[n] for n in wholes), *(op.captures[n] for n in captures)]
        found = taken_back(b, inner, sources)
        to_states, rest = found[: len(states)], found[len(states) :]
        to_slices, to_captures = rest[: len(wholes)], rest[len(wholes) :]
        totals = [b.add(total, new) for total, new in zip(grads[len(states) :], to_captures, strict=True)]
        return [*to_states, *totals], to_slices

    b = tape.b
    first = [*(grads[op.finals[n]] for n in states), *(zeros(b, op.captures[n]) for n in captures)]
    cut = [*history, *op.wholes, *(grads[stacks[n]] for n in seeds)]
    back = [*(-1 for _ in history), *(-d for d in op.scanned), *(-directions[n] for n in seeds)]
    finals, found = loop(
        b,
        turn,
        first,
        cut,
        trip_count=op.trip_count,
        directions=back,
        stack_directions=[-op.scanned[n] for n in wholes],
    )
    for place, gradient in zip(states, finals[: len(states)], strict=True):
        tape.add(op.starts[place], gradient)
    for place, gradient in zip(captures, finals[len(states) :], strict=True):
        tape.add(op.captures[place], gradient)
    for place, gradient in zip(wholes, found, strict=True):
        tape.add(op.wholes[place], gradient)


def again(
    b: GraphBuilder, block: Block, values: dict[SSAValue, SSAValue], make: Callable[[GraphBuilder], Gradients]
) -> tuple[list[SSAValue], Gradients]:
    """Compute a region's ops again at the builder's place: what they yield, and gradients to be filled."""
    yielded: list[SSAValue] = []
    for op in block.ops:
        if isinstance(op, YieldOp):
            yielded = [values[operand] for operand in op.operands]
            break
        copy = b.insert(op.clone(value_mapper=values))
        if isinstance(copy, LoopOp) and not copy.conditional:
            copy = _with_history(copy)
        values.update(zip(op.results, copy.results, strict=False))
    return yielded, make(b)


def taken_back(
    b: GraphBuilder, inner: Gradients, sources: Sequence[SSAValue], after: Operation | None = None
) -> list[SSAValue]:
    """The gradients of these values, by all ops of the block so far, or by those after one of them."""
    for op in list(ops_after(after, b)):
        inner.propagate(op)
    return inner.of(sources)


def captured_floats(op: ControlOp) -> list[int]:
    """The places of captures that have gradients: of a value that is captured twice, the first has all of it."""
    captures = list(op.captures)
    return [n for n, value in enumerate(captures) if is_float(value) and captures.index(value) == n]
