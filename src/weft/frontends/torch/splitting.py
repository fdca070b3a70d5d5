"""Graphs in which sizes come up that only data decide (`nonzero`, a mask, `.item()`), cut where these become known.

    y = softmax(x)                       compiled
    i = nonzero(y > 0.2)    # u0 × 2     carried out by torch
    z = (i * 2).sum(0)                   compiled, with the symbol u0, which the argument i tells

A `while_loop_stack_output` has as many results as turns: its condition and its body are compiled, each as a graph, and
called in turn.

What makes such a size, what computes with it alone and what asserts something of it are steps of their own; every other
node lies in the first part in which all that it takes is there. A part is a graph like any other.
"""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from weft.frontends.torch.execution.first_call import Boxed
from weft.frontends.torch.importer.opaque import has_effects, is_pure

_ASSERTIONS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)

_STACKED_LOOP = "while_loop_stack_output"


@dataclass(frozen=True)
class GraphPiece:
    """Nodes that are compiled together, as a graph of its own: what it takes and gives are nodes of the whole one."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Split:
    """A graph as parts, and nodes between them that torch carries out."""

    module: fx.GraphModule
    steps: tuple[GraphPiece | fx.Node, ...]

    @property
    def parts(self) -> list[GraphPiece]:
        return [step for step in self.steps if isinstance(step, GraphPiece)]

    @property
    def sources(self) -> list[fx.Node]:
        """The nodes whose results have sizes, or are numbers, that only data decide."""
        steps = [step for step in self.steps if isinstance(step, fx.Node) and _name_of(step) != _STACKED_LOOP]
        return [node for node in steps if any(_is_tensor(given) for given in node.all_input_nodes) and _is_source(node)]

    @property
    def loops(self) -> dict[fx.Node, list[fx.GraphModule]]:
        """Loops of as many turns as data decide, which stack their results: the condition and the body of each."""
        nodes = [step for step in self.steps if isinstance(step, fx.Node) and _name_of(step) == _STACKED_LOOP]
        return {node: [self._function(each) for each in node.args[:2]] for node in nodes}

    def _function(self, node: Any) -> fx.GraphModule:
        return _with_results(self.module.get_submodule(str(node.target)))

    def runner(self, callables: Sequence[Boxed], loops: Mapping[fx.Node, Callable[..., Any]] | None = None) -> Boxed:
        """A callable for the graph, from one for each part, and one for each of the `loops`."""
        instead = loops or {}
        module, calls = self.module, iter(callables)
        placeholders: list[fx.Node] = list(module.graph.find_nodes(op="placeholder"))
        constants = {
            node: operator.attrgetter(str(node.target))(module) for node in module.graph.find_nodes(op="get_attr")
        }
        (output,) = module.graph.find_nodes(op="output")
        steps = [(step, next(calls) if isinstance(step, GraphPiece) else None) for step in self.steps]
        done = _last_uses(self.steps, output)

        def call(arguments: list[Any]) -> list[Any]:
            values: dict[fx.Node, Any] = {**constants, **dict(zip(placeholders, arguments, strict=True))}
            arguments.clear()
            for (step, function), finished in zip(steps, done, strict=True):
                if isinstance(step, GraphPiece):
                    assert function is not None
                    results = function([values[node] for node in step.inputs])
                    values.update(zip(step.outputs, results, strict=True))
                else:
                    values[step] = _carried_out(step, values, instead.get(step))
                for node in finished:
                    values.pop(node, None)
            return list(map_arg(output.args[0], values.__getitem__))

        call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return call


def split_graph(module: fx.GraphModule) -> Split | None:
    """The parts of a graph in which a size comes up that only data decide; None for all others."""
    nodes = list(module.graph.nodes)
    if not any(node.meta.get("unbacked_bindings") for node in nodes) or any(has_effects(node) for node in nodes):
        return None
    steps = _Levels(nodes).steps()
    made: list[GraphPiece | fx.Node] = []
    there = [node for node in nodes if node.op == "placeholder"]
    for number, step in enumerate(steps):
        if isinstance(step, fx.Node):
            made.append(step)
            there.append(step)
            continue
        later = [each for other in steps[number + 1 :] for each in ([other] if isinstance(other, fx.Node) else other)]
        needed = {node for each in (*later, nodes[-1]) for node in each.all_input_nodes}
        made.append(_part(module, step, needed, list(_tellers(there))))
    return Split(module, tuple(made))


class _Levels:
    """Which part each node lies in. A step that torch carries out follows the part of its own level."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.level: dict[fx.Node, int] = {}
        self.apart: set[fx.Node] = set()
        known = {symbol for node in nodes if node.op == "placeholder" for symbol in _unbacked(node)}
        placeholders = {node for node in nodes if node.op == "placeholder"}
        written: list[fx.Node] = []
        impure = 0
        for node in nodes:
            if node.op != "call_function":
                self.level[node] = 0
                continue
            if node.target is torch.ops.aten.copy_.default and node.args[0] in placeholders:
                written.append(node)
                continue
            symbols = _unbacked(node)
            scalar = not _is_tensor(node) and not isinstance(node.meta.get("val"), tuple | list)
            asserts = node.target in _ASSERTIONS and any(_unbacked(given) for given in node.all_input_nodes)
            taken = node.target is operator.getitem and node.args[0] in self.apart  # parts take no tuples
            if symbols - known or (symbols and scalar) or asserts or taken:
                self.apart.add(node)
            known |= symbols
            level = max((self._after(given, node in self.apart) for given in node.all_input_nodes), default=0)
            if not is_pure(node.target) and not scalar:  # random numbers are drawn in their order
                level = max(level, impure)
                impure = level + (node in self.apart)
            self.level[node] = level
        last = max((level + (node in self.apart) for node, level in self.level.items()), default=0)
        self.level.update(dict.fromkeys(written, last))  # when all have read what was there
        self.nodes = [node for node in nodes if node.op == "call_function"]

    def _after(self, given: fx.Node, apart: bool) -> int:
        return self.level[given] + (given in self.apart and not apart)

    def steps(self) -> list[list[fx.Node] | fx.Node]:
        found: list[list[fx.Node] | fx.Node] = []
        for level in range(max(self.level.values(), default=0) + 1):
            here = [node for node in self.nodes if self.level[node] == level]
            if together := [node for node in here if node not in self.apart]:
                found.append(together)
            found.extend(node for node in here if node in self.apart)
        return found


def _part(
    module: fx.GraphModule, nodes: Sequence[fx.Node], needed: set[fx.Node], tellers: Sequence[fx.Node]
) -> GraphPiece:
    inside = set(nodes)
    taken = dict.fromkeys(given for node in nodes for given in node.all_input_nodes if given not in inside)
    inputs = [given for given in taken if given.op != "get_attr"]
    symbols = {symbol for node in (*nodes, *inputs) for symbol in _unbacked(node)}
    inputs += [node for node in tellers if _unbacked(node) & symbols and node not in taken]
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for given in inputs:
        copies[given] = graph.placeholder(given.name)
        copies[given].meta = dict(given.meta)
    for given in taken:
        if given.op == "get_attr":
            copies[given] = graph.node_copy(given)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta.pop("unbacked_bindings", None)
    outputs = [node for node in nodes if node in needed]
    graph.output(tuple(copies[node] for node in outputs))
    return GraphPiece(fx.GraphModule(module, graph), tuple(inputs), tuple(outputs))


def _tellers(there: Iterable[fx.Node]) -> Iterable[fx.Node]:
    """What is such a size alone, of arguments and of steps that torch has carried out by then: of two tensors that have
    one size, the other may come later, wherever it stands in the graph."""
    for node in there:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol and _unbacked(node):
            yield node


def stacked_loop(condition: Boxed, body: Boxed) -> Callable[..., tuple[Any, ...]]:
    """What all turns of a loop give, stacked; without a turn it is what the loop begins with."""

    def call(_condition: Any, _body: Any, carried: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
        states, turns = list(carried), list[list[Any]]()
        while condition([*states, *captured])[0]:
            states = list(body([*states, *captured]))
            turns.append(states)
        if turns:
            return tuple(torch.stack(each) for each in zip(*turns, strict=True))
        return tuple(each.unsqueeze(0).clone() if isinstance(each, torch.Tensor) else each for each in carried)

    return call


def _with_results(module: Any) -> fx.GraphModule:
    """A graph of a loop as one that is compiled: its results are a tuple, also where there is one."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    returned: Any = graph.graph_copy(module.graph, copies)
    graph.output(tuple(returned) if isinstance(returned, tuple | list) else (returned,))
    return fx.GraphModule(module, graph)


def _name_of(node: fx.Node) -> Any:
    return getattr(node.target, "_name", None)


def _carried_out(node: fx.Node, values: Mapping[fx.Node, Any], instead: Callable[..., Any] | None) -> Any:
    function: Any = instead or node.target
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        return function(*args, **kwargs)


def _last_uses(steps: Sequence[GraphPiece | fx.Node], output: fx.Node) -> list[list[fx.Node]]:
    """The nodes whose values nobody needs after each step."""
    kept = set(output.all_input_nodes)
    done: list[list[fx.Node]] = []
    for step in reversed(steps):
        taken = step.inputs if isinstance(step, GraphPiece) else step.all_input_nodes
        done.append([node for node in dict.fromkeys(taken) if node not in kept])
        kept.update(taken)
    return done[::-1]


def _unbacked(node: fx.Node) -> set[Any]:
    value: Any = node.meta.get("val")
    return set(free_unbacked_symbols(value))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_source(node: fx.Node) -> bool:
    return bool(_unbacked(node)) and node.target not in (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)
