"""Control flow: loops become ops with regions where their turns are alike, and are unrolled turn by turn elsewhere.

A condition that is looked at decides between graphs. Where it is computed from data the stage ends, the condition is
looked at, and what follows it is compiled when it is first met. Equal turns of a loop share their code.
"""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ModelError, UnsupportedError
from weft.frontends.onnx.call import Call, NoRegion
from weft.frontends.onnx.dtypes import NUMBERS
from weft.frontends.onnx.model import Graph, Node, renamed
from weft.frontends.onnx.operators.compiled_loops import (
    MOST_COMPILED_TURNS,
    Turns,
    compiled_branches,
    compiled_loop,
    scalar_flag,
)
from weft.frontends.onnx.operators.counted_loops import counted_turns
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.rewrite import INTERNAL, Rewrite
from weft.frontends.onnx.values import Items, Known, has_kernels
from weft.ir.types import i64
from weft.ops.control import UNBOUNDED

MOST_TURNS = 100_000
"""Turns that a loop may take where each is a piece of the program."""
FEW_TURNS = 4
"""Turns that are written out: kernels then run over their borders."""


def _fresh(c: Call) -> Callable[[str], str]:
    return c.scope.fresh


def _body(
    c: Call, graph: Graph, given: Mapping[str, str], outputs: tuple[str, ...]
) -> tuple[list[Node], dict[str, np.ndarray]]:
    """A graph's nodes with names of their own; `given` are those of its inputs, its results go to `outputs`."""
    fresh = _fresh(c)
    own = {name for node in graph.nodes for name in node.outputs if name} | set(graph.initializers)
    names = {**{name: fresh(name) for name in own}, **given}
    nodes = [renamed(node, names) for node in graph.nodes]
    for each, name in zip(graph.outputs, outputs, strict=True):
        nodes.append(Node("Identity", "", (names.get(each.name, each.name),), (name,), name=c.node.name))
    nodes = [replace(node, opsets=c.node.opsets) if node.opsets is None else node for node in nodes]
    return nodes, {names[name]: array for name, array in graph.initializers.items()}


@onnx_op("If")
def if_(c: Call) -> Any:
    if (c.scope.in_region or c.scope.whole) and not isinstance(c.input(0), Known):
        made = _branches(c)
        if made is not None:
            return made
        if c.scope.in_region:
            raise NoRegion
    chosen = c.graph("then_branch" if bool(c.known_scalar(0)) else "else_branch")
    if len(chosen.outputs) < len(c.node.outputs):
        raise ModelError(f"{c.node}: a branch has {len(chosen.outputs)} outputs, expected {len(c.node.outputs)}")
    fresh = _fresh(c)
    outputs = tuple(c.node.outputs[n] if n < len(c.node.outputs) else "" for n in range(len(chosen.outputs)))
    return Rewrite(*_body(c, chosen, {}, tuple(name or fresh("unused") for name in outputs)))


def _branches(c: Call) -> list[SSAValue] | None:
    sides = c.graph("then_branch"), c.graph("else_branch")
    if not all(len(each.outputs) == len(c.node.outputs) for each in sides):
        return None
    try:
        return compiled_branches(c, scalar_flag(c, c.b, c.x(0)), *sides)
    except NoRegion:
        return None


@onnx_op("Loop")
def loop(c: Call) -> Any:
    body = c.graph("body")
    carried = len(c.node.inputs) - 2
    scanned = len(body.outputs) - 1 - carried
    if carried < 0 or scanned < 0 or len(body.inputs) != carried + 2:
        raise ModelError(f"{c.node}: its body takes {len(body.inputs)} values and gives {len(body.outputs)}")
    if not c.has(0) and not c.has(1):
        raise UnsupportedError(f"{c.node} has neither a trip count nor a condition: it would not end")
    made = _compiled(c, body, carried, scanned)
    if made is not None:
        return made
    trips = max(int(c.known_scalar(0)), 0) if c.has(0) else -1
    fresh = _fresh(c)
    lists = [fresh("list") for _ in range(scanned)]
    empty = [Node("SequenceEmpty", "", (), (name,)) for name in lists]
    turn = Node(
        "LoopTurn",
        INTERNAL,
        (c.node.inputs[1], *c.node.inputs[2:], *lists),
        c.node.outputs,
        {"body": body, "trips": trips, "turn": 0, "carried": carried, "looks": int(c.has(1))},
        c.node.name,
    )
    return Rewrite([*empty, turn])


def _compiled(c: Call, body: Graph, carried: int, scanned: int) -> list[SSAValue] | None:
    """The results of a loop as one op; None where its turns have to be unrolled, or are so few that it pays."""
    count, first = (c.input(place) if c.has(place) else None for place in (0, 1))
    trips, most, starts_if = UNBOUNDED, None, None
    if isinstance(count, Known):
        trips = int(c.known_scalar(0))
        if trips <= FEW_TURNS:
            return None
        if trips > MOST_COMPILED_TURNS:  # exporters of `while` state the largest number that there is
            trips = UNBOUNDED
    if isinstance(first, Known) and not first.array.all():
        return None
    if not scanned:
        try:
            if count is not None and not isinstance(count, Known):
                most = _number(c, c.x(0))
            if first is not None and not isinstance(first, Known):
                starts_if = scalar_flag(c, c.b, c.x(1))
        except NoRegion:
            return None
    names = [each.name for each in body.inputs]
    is_counted = False
    if scanned:
        if (count is not None and not isinstance(count, Known)) or (first is not None and not isinstance(first, Known)):
            return None  # how long results are is to be looked at first
        counted = counted_turns(c, body, dict(zip(names[2:], c.inputs[2:], strict=True)), trips)
        if counted is not None:
            trips, is_counted = counted, True
        if trips == UNBOUNDED or trips <= FEW_TURNS:
            return None
    turns = Turns(
        body,
        list(zip(names[2:], c.inputs[2:], strict=True)),
        trip_count=trips,
        stack_directions=(1,) * scanned,
        number=names[0],
        most=most,
        condition=names[1],
        first=starts_if,
        is_counted=is_counted,
    )
    found = compiled_loop(c, turns)
    return None if found is None else [*found[0], *found[1]]


def _number(c: Call, value: SSAValue) -> SSAValue:
    """A count as a number without dimensions."""
    tensor = c.b.tensor(value)
    if any(size != 1 for size in tensor.shape) or tensor.dtype != i64:
        raise NoRegion
    return c.b.reshape(value, shape=()) if tensor.shape else value


@onnx_op("LoopTurn", domain=INTERNAL)
def loop_turn(c: Call) -> Any:
    body, carried, turn, trips = c.graph("body"), c.int("carried"), c.int("turn"), c.int("trips")
    state, lists = c.node.inputs[1 : carried + 1], c.node.inputs[carried + 1 :]
    over = trips >= 0 and turn >= trips
    if not over and c.flag("looks"):
        over = not bool(c.known_scalar(0))
    if over:
        return Rewrite(_ending(c, body, state, lists, carried + 1))
    if turn >= MOST_TURNS:
        raise UnsupportedError(f"{c.node}: the loop takes over {MOST_TURNS} turns")
    if turn % 16 == 0:
        c.scope.check_room()
    fresh = _fresh(c)
    count, condition = fresh("turn"), fresh("condition")
    given = dict(zip((each.name for each in body.inputs), (count, c.node.inputs[0] or condition, *state), strict=True))
    made = tuple(fresh(each.name) for each in body.outputs)
    nodes, arrays = _body(c, body, given, made)
    arrays[count] = np.array(turn, np.int64)
    if not c.node.inputs[0]:
        arrays[condition] = np.array(True)
    longer = [fresh("list") for _ in lists]
    for old, value, new in zip(lists, made[carried + 1 :], longer, strict=True):
        nodes.append(Node("Append", INTERNAL, (old, value), (new,)))
    attributes = {**c.node.attributes, "turn": turn + 1, "looks": 1}
    nodes.append(replace(c.node, inputs=(made[0], *made[1 : carried + 1], *longer), attributes=attributes))
    return Rewrite(nodes, arrays)


def _ending(c: Call, body: Graph, state: tuple[str, ...], lists: tuple[str, ...], first: int) -> list[Node]:
    """What a loop's outputs are when it is over."""
    outputs = c.node.outputs
    nodes = [Node("Identity", "", (name,), (out,)) for name, out in zip(state, outputs, strict=False) if out]
    axes = c.ints("axes", (0,) * len(lists))
    backwards = c.ints("backwards", (0,) * len(lists))
    for n, (name, out) in enumerate(zip(lists, outputs[len(state) :], strict=False)):
        if not out:
            continue
        type_ = body.outputs[first + n].type
        shape = tuple(size if isinstance(size, int) else 0 for size in type_.shape or ())
        attributes: dict[str, Any] = {"axis": axes[n], "empty": shape}
        attributes["type"] = NUMBERS[np.dtype(np.float32) if type_.dtype is None else type_.dtype]
        source = name
        if backwards[n]:
            source = _fresh(c)("list")
            nodes.append(Node("Backwards", INTERNAL, (name,), (source,)))
        nodes.append(Node("Stack", INTERNAL, (source,), (out,), attributes, c.node.name))
    return nodes


@onnx_op("Backwards", domain=INTERNAL)
def backwards(c: Call) -> Any:
    values = c.sequence(0)
    return replace(values, values=tuple(reversed(values.values)))


@onnx_op("Scan")
def scan(c: Call) -> Any:
    body, count = c.graph("body"), c.int("num_scan_inputs")
    inputs = c.node.inputs
    if c.version < 9:
        return _scan_of_batches(c)
    carried = len(inputs) - count
    scanned = len(body.outputs) - carried
    if count < 1 or carried < 0 or scanned < 0 or len(body.inputs) != carried + count:
        raise ModelError(f"{c.node}: its body takes {len(body.inputs)} values and gives {len(body.outputs)}")
    in_axes = c.ints("scan_input_axes", (0,) * count)
    axes = [c.axis(in_axes[n], c.rank(carried + n)) for n in range(count)]
    lengths = {c.shape(carried + n)[axis] for n, axis in enumerate(axes)}
    if len(lengths) != 1:
        raise ModelError(f"{c.node}: what is scanned has the lengths {sorted(lengths)}, expected one")
    length = lengths.pop()
    in_backwards = c.ints("scan_input_directions", (0,) * count)
    out_axes = c.ints("scan_output_axes", (0,) * scanned)
    backwards = c.ints("scan_output_directions", (0,) * scanned)
    if length > FEW_TURNS and all(map(has_kernels, c.inputs)):
        names = [each.name for each in body.inputs]
        turns = Turns(
            body,
            list(zip(names, c.inputs[:carried], strict=False)),
            list(zip(names[carried:], (_in_front(c, carried + n, axes[n]) for n in range(count)), strict=True)),
            [-1 if each else 1 for each in in_backwards],
            [-1 if each else 1 for each in backwards],
            length,
        )
        found = compiled_loop(c, turns)
        if found is not None:
            return [*found[0], *(_behind(c, stack, axis) for stack, axis in zip(found[1], out_axes, strict=True))]
    fresh = _fresh(c)
    lists = [fresh("list") for _ in range(scanned)]
    attributes: dict[str, Any] = {
        "body": body,
        "turn": 0,
        "length": length,
        "carried": carried,
        "scanned": count,
        "in_axes": tuple(axes),
        "in_backwards": in_backwards,
        "axes": out_axes,
        "backwards": backwards,
    }
    empty = [Node("SequenceEmpty", "", (), (name,)) for name in lists]
    turn = Node("ScanTurn", INTERNAL, (*inputs, *lists), c.node.outputs, attributes, c.node.name)
    return Rewrite([*empty, turn])


def _in_front(c: Call, place: int, axis: int) -> SSAValue:
    """An input whose slices lie along the first dimension."""
    order = (axis, *(d for d in range(c.rank(place)) if d != axis))
    return c.b.permute(c.x(place), dims=order) if axis else c.x(place)


def _behind(c: Call, stack: SSAValue, axis: int) -> SSAValue:
    """A stack whose slices lie along another dimension than the first."""
    rank = c.b.tensor(stack).rank
    axis = c.axis(axis, rank, "scan_output_axes")
    order = [d for d in range(1, rank)]
    order.insert(axis, 0)
    return c.b.permute(stack, dims=tuple(order)) if axis else stack


def _scan_of_batches(c: Call) -> Rewrite:
    """Version 8: every value has a dimension of batches in front, and each batch is scanned by itself."""
    if c.has(0):
        raise UnsupportedError(f"{c.node}: lengths of sequences are not supported")
    inputs, fresh = c.node.inputs[1:], _fresh(c)
    attributes: dict[str, Any] = {"body": c.graph("body"), "num_scan_inputs": c.int("num_scan_inputs")}
    if c.given("directions"):
        attributes["scan_input_directions"] = c.ints("directions")
    lists = [fresh("list") for _ in c.node.outputs]
    nodes = [Node("SequenceEmpty", "", (), (name,)) for name in lists]
    arrays: dict[str, np.ndarray] = {}
    for batch in range(c.shape(1)[0]):
        place, taken = fresh("batch"), tuple(fresh(name) for name in inputs)
        arrays[place] = np.array(batch, np.int64)
        for name, one in zip(inputs, taken, strict=True):
            nodes.append(Node("Gather", "", (name, place), (one,), {"axis": 0}))
        made = tuple(fresh(name) for name in c.node.outputs)
        opsets = {**(c.node.opsets or {}), "": 9}
        nodes.append(Node("Scan", "", taken, made, attributes, c.node.name, opsets=opsets))
        longer = [fresh("list") for _ in lists]
        for old, value, new in zip(lists, made, longer, strict=True):
            nodes.append(Node("Append", INTERNAL, (old, value), (new,)))
        lists = longer
    for name, out in zip(lists, c.node.outputs, strict=True):
        nodes.append(Node("Stack", INTERNAL, (name,), (out,), {"axis": 0, "type": 1}, c.node.name))
    return Rewrite(nodes, arrays)


@onnx_op("ScanTurn", domain=INTERNAL)
def scan_turn(c: Call) -> Any:
    body, carried, count, turn = c.graph("body"), c.int("carried"), c.int("scanned"), c.int("turn")
    state, sources = c.node.inputs[:carried], c.node.inputs[carried : carried + count]
    lists, length = c.node.inputs[carried + count :], c.int("length")
    if turn >= length:
        return Rewrite(_ending(c, body, state, lists, carried))
    if turn >= MOST_TURNS:
        raise UnsupportedError(f"{c.node}: the scan takes over {MOST_TURNS} turns")
    if turn % 16 == 0:
        c.scope.check_room()
    fresh = _fresh(c)
    nodes: list[Node] = []
    arrays: dict[str, np.ndarray] = {}
    taken: list[str] = []
    for name, axis, back in zip(sources, c.ints("in_axes"), c.ints("in_backwards"), strict=True):
        place, value = fresh("place"), fresh("value")
        arrays[place] = np.array(length - 1 - turn if back else turn, np.int64)
        nodes.append(Node("Gather", "", (name, place), (value,), {"axis": axis}))
        taken.append(value)
    given = dict(zip((each.name for each in body.inputs), (*state, *taken), strict=True))
    made = tuple(fresh(each.name) for each in body.outputs)
    inner, constants = _body(c, body, given, made)
    nodes += inner
    arrays.update(constants)
    longer = [fresh("list") for _ in lists]
    for old, value, new in zip(lists, made[carried:], longer, strict=True):
        nodes.append(Node("Append", INTERNAL, (old, value), (new,)))
    attributes = {**c.node.attributes, "turn": turn + 1}
    nodes.append(replace(c.node, inputs=(*made[:carried], *sources, *longer), attributes=attributes))
    return Rewrite(nodes, arrays)


@onnx_op("SequenceMap")
def sequence_map(c: Call) -> Any:
    body = c.graph("body")
    length = len(c.sequence(0).values)
    fresh = _fresh(c)
    nodes: list[Node] = []
    arrays: dict[str, np.ndarray] = {}
    lists = [fresh("list") for _ in body.outputs]
    nodes += [Node("SequenceEmpty", "", (), (name,)) for name in lists]
    for turn in range(length):
        given: dict[str, str] = {}
        for place, each in enumerate(body.inputs):
            if isinstance(c.inputs[place], Items):
                index, value = fresh("place"), fresh("value")
                arrays[index] = np.array(turn, np.int64)
                nodes.append(Node("SequenceAt", "", (c.node.inputs[place], index), (value,)))
                given[each.name] = value
            else:
                given[each.name] = c.node.inputs[place]
        made = tuple(fresh(each.name) for each in body.outputs)
        inner, constants = _body(c, body, given, made)
        nodes += inner
        arrays.update(constants)
        longer = [fresh("list") for _ in lists]
        nodes += [
            Node("Append", INTERNAL, (old, value), (new,)) for old, value, new in zip(lists, made, longer, strict=True)
        ]
        lists = longer
    nodes += [Node("Identity", "", (name,), (out,)) for name, out in zip(lists, c.node.outputs, strict=True) if out]
    return Rewrite(nodes, arrays)
