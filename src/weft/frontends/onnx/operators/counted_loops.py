"""How many turns a `Loop` takes whose condition is computed of what is known: `i < n`, with `i` carried and counted up.

Exporters of `while` state no trip count. The nodes that the condition needs, from turn to turn, are carried out at
import; what a loop stacks then has a length, and the loop is compiled like one that states its count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from xdsl.ir import Block

from weft.frontends.onnx.call import Call, NoRegion
from weft.frontends.onnx.model import Graph, Node
from weft.frontends.onnx.values import Known, Value
from weft.ops.control import UNBOUNDED
from weft.ops.graph import GraphBuilder

_MOST_NODES = 16
"""Nodes of a condition; more are no counter."""
_MOST_TURNS = 4096
"""Turns that are counted: each costs an import of the condition's nodes."""


def counted_turns(c: Call, body: Graph, starts: Mapping[str, Value], most: int) -> int | None:
    """The turns of a loop that has a first one, by the values that its body's inputs have then; None if data decide.

    A trip count ends it after `most`, which may be `UNBOUNDED`.
    """
    found = _condition(body)
    if found is None or any(node.attributes.keys() & {"body", "then_branch", "else_branch"} for node in found[0]):
        return None
    nodes, carried = found
    nodes = [replace(node, opsets=c.node.opsets) if node.opsets is None else node for node in nodes]
    condition, number = body.inputs[1].name, body.inputs[0].name
    state: dict[str, Value] = {name: starts[name] for name in carried}
    constants: dict[str, Value] = {name: Known(array) for name, array in body.initializers.items()}
    for turn in range(_MOST_TURNS if most == UNBOUNDED else min(most, _MOST_TURNS)):
        if not all(isinstance(value, Known) for value in state.values()):
            return None
        given = constants | state | {number: Known(np.array(turn)), condition: Known(np.array(True))}
        try:
            with c.scope.within(GraphBuilder(Block(), c.b.location), nodes, given) as values:
                following = values[body.outputs[0].name]
                state = {name: values[output] for name, output in carried.items()}
        except NoRegion:
            return None
        if not isinstance(following, Known):
            return None
        if not following.array.all():
            return turn + 1
    return most if 0 < most <= _MOST_TURNS else None


def _condition(body: Graph) -> tuple[list[Node], dict[str, str]] | None:
    """The nodes that the condition is made by, and what is carried for them: outputs by the inputs they are next."""
    next_of = {given.name: made.name for given, made in zip(body.inputs[2:], body.outputs[1:], strict=False)}
    needed = {body.outputs[0].name}
    carried: dict[str, str] = {}
    while True:
        nodes: list[Node] = []
        for node in reversed(body.nodes):
            if needed & set(node.outputs):
                nodes.append(node)
                needed |= {name for name in node.inputs if name}
        added = {name: made for name, made in next_of.items() if name in needed and name not in carried}
        if len(nodes) > _MOST_NODES:
            return None
        if not added:
            counts = bool(carried) or body.inputs[0].name in needed
            return (nodes[::-1], carried) if counts else None
        carried |= added
        needed |= set(added.values())
