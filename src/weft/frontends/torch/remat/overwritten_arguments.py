"""Keeps values of arguments that a function writes over and its backward reads.

    %m = mul %x, %x                        %c = clone %x              ← may be kept, is not made again
    %y = div %z, %m                        %m = mul %c, %c
    %_ = copy_ %x, %w               →      %y = div %z, %m
    ⋯                                      %_ = copy_ %x, %w
    %g = div %t, %m                        ⋯
                                           %g = div %t, %m

Torch's partitioner takes arguments for values that cost nothing to keep, and would have the backward compute `%m` from
what the function has written to `%x`. An argument that has a gradient is written to by torch when the graph has run,
with one of its results: kept as it is, autograd would refuse it.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from weft.frontends.torch.capture.checkpoint_marks import mark
from weft.frontends.torch.remat.recompute_operands import behind_tangents

_aten: Any = torch.ops.aten


def keep_overwritten(joint: fx.GraphModule) -> None:
    """Have the backward read copies of arguments that are written over."""
    graph = joint.graph
    writes = graph.find_nodes(op="call_function", target=_aten.copy_.default)
    written = {
        node.args[0] for node in writes if isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    } | _written_afterwards(graph)
    read = _read_by_backward(graph) if written else set[fx.Node]()
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for argument in graph.find_nodes(op="placeholder"):
        if argument in written and argument in read:
            with graph.inserting_before(first):
                copy = graph.call_function(_aten.clone.default, (argument,))
            copy.meta = {"val": argument.meta["val"].clone()} if "val" in argument.meta else {}
            others = [user for user in argument.users if user is not copy and user not in writes]
            for user in others:
                user.replace_input_with(argument, copy)
            mark(copy, CheckpointPolicy.MUST_SAVE)


def _written_afterwards(graph: fx.Graph) -> set[fx.Node]:
    """The arguments that torch writes results of the graph to."""
    results: Any = graph.output_node().meta.get("desc") or ()
    changed = {each for result in results if (each := getattr(result, "mutated_input", None)) is not None}
    return {node for node in graph.find_nodes(op="placeholder") if changed and node.meta.get("desc") in changed}


def _read_by_backward(graph: fx.Graph) -> set[fx.Node]:
    """All that goes into what tangents go into."""
    waiting = [each for node in behind_tangents(graph) for each in node.all_input_nodes]
    found: set[fx.Node] = set()
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
