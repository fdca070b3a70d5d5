"""Values through which no gradient flows, in captured graphs: their bits are read, and bits have none."""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def stopped(x: torch.Tensor) -> torch.Tensor:
    """The same values, through which no gradient flows."""
    return x.view(_BITS[x.dtype.itemsize]).view(x.dtype) if x.is_floating_point() else x


def stop_gradients(graph: fx.Graph) -> None:
    """Let no gradient flow to the rows of padding of embeddings."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.embedding.default:
            stop_gradient_of_padding(graph, node)


def stop_gradient_of_padding(graph: fx.Graph, node: fx.Node) -> None:
    """A row of an embedding that pads has no gradient where it is read."""
    table, places, *rest = node.args
    padding = rest[0] if rest else -1
    assert isinstance(table, fx.Node) and isinstance(places, fx.Node), "traced"
    if not isinstance(padding, int) or padding < 0:
        return

    def padded(add: Callable[..., fx.Node]) -> fx.Node:
        aten = torch.ops.aten
        pads = add(aten.unsqueeze.default, add(aten.eq.Scalar, places, padding), -1)
        return add(aten.where.self, pads, _fixed(add, node), node)

    _replace(graph, node, padded)


def _fixed(add: Callable[..., fx.Node], node: fx.Node) -> fx.Node:
    kind: torch.dtype = node.meta["val"].dtype
    bits = add(torch.ops.aten.view.dtype, node, _BITS[kind.itemsize])
    return add(torch.ops.aten.view.dtype, bits, kind)


def _replace(graph: fx.Graph, node: fx.Node, build: Callable[[Callable[..., fx.Node]], fx.Node]) -> None:
    """Let the readers of a node read what is built of it."""
    readers = list(node.users)
    made: fx.Node = node

    def add(target: Any, *args: Any) -> fx.Node:
        nonlocal made
        with graph.inserting_after(made):
            made = graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta = {**node.meta, "val": target(*values)}
        return made

    chosen = build(add)
    for reader in readers:
        reader.replace_input_with(node, chosen)
