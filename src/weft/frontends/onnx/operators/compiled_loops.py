"""Loops and branches as ops with regions: what `Loop`, `Scan` and, inside of them, `If` become where turns are alike.

A body is imported once, into a region. Where that cannot be (a shape that changes from turn to turn, a sequence that is
carried, an operator that runs on the host, elements that have to be looked at) there is None: turns are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Block, SSAValue

from weft.errors import UnsupportedError
from weft.frontends.onnx.call import Call, Mistake, NoRegion
from weft.frontends.onnx.checks import combined
from weft.frontends.onnx.model import Graph, Node
from weft.frontends.onnx.values import Known, Traced, Value, has_kernels
from weft.ir.types import Tensor, boolean, i64, tensor_of, tensor_type
from weft.ops.control import UNBOUNDED, close_if, close_loop
from weft.ops.graph import GraphBuilder

MOST_COMPILED_TURNS = 1_000_000
"""Turns that a compiled loop may take; a condition that holds even then is told, and the loop does not run on."""

_NUMBER, _FLAG = Tensor(i64, ()), Tensor(boolean, ())


@dataclass(frozen=True)
class Turns:
    """A loop: its body's inputs by name, with what they are at first, or what they are slices of."""

    body: Graph
    carried: Sequence[tuple[str, Value]]
    sliced: Sequence[tuple[str, SSAValue]] = ()
    directions: Sequence[int] = ()
    stack_directions: Sequence[int] = ()
    trip_count: int = UNBOUNDED
    number: str = ""
    """The input that is the number of the turn."""
    most: SSAValue | None = None
    """How many turns there are, where only data tell."""
    condition: str = ""
    """The input that is the condition. The body's first output is the next one."""
    first: SSAValue | None = None
    """Whether there is a first turn, where only data tell."""
    is_counted: bool = False
    """Whether the condition holds for as many turns as are stated, and for no more."""


def compiled_loop(c: Call, turns: Turns) -> tuple[list[SSAValue], list[SSAValue]] | None:
    """What is carried after the last turn, and the stacks; None where turns have to be written out."""
    if not all(has_kernels(value) for _, value in turns.carried):
        return None
    block = Block()
    try:
        return _looped(c, turns, block)
    except NoRegion:
        _forget(block)
        return None


def _looped(c: Call, turns: Turns, block: Block) -> tuple[list[SSAValue], list[SSAValue]]:
    b, inside = c.b, GraphBuilder(block, c.b.location)
    kept = _kept(turns)
    changing = [(name, value) for name, value in turns.carried if name not in kept]
    starts = [c.scope.traced(value, c.node) for _, value in changing]
    number = block.insert_arg(tensor_type(_NUMBER), 0)
    given: dict[str, Value] = {turns.number: Traced(number)} if turns.number else {}
    given |= kept
    for (name, _), start in zip(changing, starts, strict=True):
        given[name] = Traced(block.insert_arg(start.type, len(block.args)))
    for name, whole in turns.sliced:
        tensor = tensor_of(whole.type)
        given[name] = Traced(block.insert_arg(tensor_type(Tensor(tensor.dtype, tensor.shape[1:])), len(block.args)))
    if turns.condition:
        given[turns.condition] = Known(np.array(True))  # inside of a turn it holds
    with c.scope.within(inside, *_nodes(c, turns.body, given)) as values:
        outputs = [values[each.name] for each in turns.body.outputs]
        following = outputs.pop(0) if turns.condition else None
        names = [name for name, _ in turns.carried]
        outputs = [value for n, value in enumerate(outputs) if n >= len(names) or names[n] not in kept]
        made = [_tensor(c, value) for value in outputs]
        going = None if turns.is_counted else _going(c, turns, inside, number, following)
        if going is None and turns.trip_count == UNBOUNDED:
            raise UnsupportedError(
                f"{c.node}: the loop takes over {MOST_COMPILED_TURNS} turns: its condition always holds",
                hint="state a trip count, or compute the condition in the body",
            )
        states, stacked = made[: len(starts)], made[len(starts) :]
        if [each.type for each in states] != [each.type for each in starts]:
            raise NoRegion
        if going is not None and stacked:
            raise NoRegion  # as many slices as there were turns, which only data tell
        found = combined(inside, block, c.scope.checks)
    if found is not None:
        before = block.insert_arg(tensor_type(_NUMBER), 1 + len(starts))
        starts.append(b.full(value=0, shape=(), dtype=i64))
        states.append(inside.maximum(before, found[0]))
    if going is not None:
        block.insert_arg(tensor_type(_FLAG), 1 + len(starts))
        starts.append(going[0])
        states.append(going[1])
    most = MOST_COMPILED_TURNS if turns.trip_count == UNBOUNDED else turns.trip_count
    finals, stacks = close_loop(
        b,
        block,
        [*([] if going is None else [going[1]]), *states, *stacked],
        [*([] if going is None else [going[0]]), *starts, *(whole for _, whole in turns.sliced)],
        trip_count=most,
        carried=len(starts),
        scanned=tuple(turns.directions),
        stacked=tuple(turns.stack_directions),
    )
    results = list(finals)
    if going is not None:
        goes_on = results.pop()
        if turns.trip_count == UNBOUNDED:
            _note(c, goes_on, f"{c.node}: the loop takes over {most} turns")
    if found is not None:
        _note_codes(c, results.pop(), found[1].mistakes)
    changed = iter(results)
    finals = [c.scope.traced(value, c.node) if name in kept else next(changed) for name, value in turns.carried]
    return finals, list(stacks)


def _kept(turns: Turns) -> dict[str, Value]:
    """What every turn hands on as it is: the body reads it where it lies outside of the loop."""
    outputs = turns.body.outputs[1 if turns.condition else 0 :]
    pairs = zip(turns.carried, outputs, strict=False)
    return {name: value for (name, value), output in pairs if output.name == name}


def _going(
    c: Call, turns: Turns, inside: GraphBuilder, number: SSAValue, following: Value | None
) -> tuple[SSAValue, SSAValue] | None:
    """Whether there is a first turn, and another one; None where there are as many as are stated."""
    b = c.b
    starts = [] if turns.first is None else [turns.first]
    nexts: list[SSAValue] = []
    if turns.most is not None:
        starts.append(b.lt(b.full(value=0, shape=(), dtype=i64), turns.most))
        nexts.append(inside.lt(inside.add(number, inside.full(value=1, shape=(), dtype=i64)), turns.most))
    if isinstance(following, Known):
        if not following.array.all():
            raise NoRegion  # there is one turn
    elif following is not None:
        nexts.append(scalar_flag(c, inside, _tensor(c, following)))
    if not starts and not nexts:
        return None
    return _all(b, starts), _all(inside, nexts)


def compiled_branches(c: Call, condition: SSAValue, then: Graph, otherwise: Graph) -> list[SSAValue] | None:
    """The results of an `If` whose branches give the same types; None where they are not alike, or no regions."""
    blocks = (Block(), Block())
    results: list[list[SSAValue]] = []
    codes: list[tuple[SSAValue, tuple[Mistake, ...]] | None] = []
    try:
        for block, graph in zip(blocks, (then, otherwise), strict=True):
            with c.scope.within(GraphBuilder(block, c.b.location), *_nodes(c, graph, {})) as values:
                results.append([_tensor(c, values[each.name]) for each in graph.outputs])
                found = combined(c.scope.builder, block, c.scope.checks)
                codes.append(None if found is None else (found[0], found[1].mistakes))
        if [each.type for each in results[0]] != [each.type for each in results[1]]:
            raise NoRegion
    except NoRegion:
        for block in blocks:
            _forget(block)
        return None
    checked = [code is not None for code in codes]
    for side, block in enumerate(blocks):
        inside = GraphBuilder(block, c.b.location)
        for other, code in enumerate(codes):
            if code is not None:
                results[side].append(code[0] if other == side else inside.full(value=0, shape=(), dtype=i64))
    made = list(close_if(c.b, condition, blocks, results))
    count = len(made) - sum(checked)
    for value, code in zip(made[count:], (code for code in codes if code is not None), strict=True):
        _note_codes(c, value, code[1])
    return made[:count]


def scalar_flag(c: Call, b: GraphBuilder, value: SSAValue) -> SSAValue:
    """A condition without dimensions: files state it with one element, of whatever rank."""
    tensor = b.tensor(value)
    if tensor.dtype != boolean or any(size != 1 for size in tensor.shape):
        raise NoRegion
    return b.reshape(value, shape=()) if tensor.shape else value


def _nodes(c: Call, graph: Graph, given: Mapping[str, Value]) -> tuple[list[Node], dict[str, Value]]:
    """The nodes of a body, and what its names stand for."""
    values: dict[str, Value] = {name: Known(array) for name, array in graph.initializers.items()}
    nodes = [replace(node, opsets=c.node.opsets) if node.opsets is None else node for node in graph.nodes]
    return nodes, {**values, **given}


def _tensor(c: Call, value: Value) -> SSAValue:
    if not has_kernels(value):
        raise NoRegion
    return c.scope.traced(value, c.node)


def _all(b: GraphBuilder, flags: Sequence[SSAValue]) -> SSAValue:
    if not flags:
        return b.full(value=True, shape=(), dtype=boolean)
    first, *rest = flags
    for each in rest:
        first = b.logical_and(first, each)
    return first


def _note(c: Call, found: SSAValue, message: str) -> None:
    """State a check; what is looked at is the result of an op that is not a region's."""
    c.scope.checks.append((c.b.logical_or(found, found), Mistake(message)))


def _note_codes(c: Call, code: SSAValue, mistakes: Sequence[Mistake]) -> None:
    for number, wrong in enumerate(mistakes, 1):
        c.scope.checks.append((c.b.eq(code, c.b.full(value=number, shape=(), dtype=i64)), wrong))


def _forget(block: Block) -> None:
    """Take a block's ops away, so that nothing counts as read by them."""
    for op in reversed(list(block.ops)):
        op.detach()
        op.erase(safe_erase=False)
