"""Splits at places that Dynamo has read from a tensor: it guards on them, and knows the sizes of the parts.

tensor_split(x, places)  ─►  split(x, [2, 2, 1])        a trace would have to read the tensor again, and cannot
"""

# Torch's graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx


def with_split_sizes(module: fx.GraphModule) -> fx.GraphModule:
    """A graph in which splits by tensors are splits into parts of known sizes."""
    found = [(node, parts) for node in module.graph.nodes if (parts := _parts(node)) is not None]
    if not found:
        return module
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node, (x, sizes, dim) in found:
        copy = copies[node]
        with graph.inserting_before(copy):
            made = graph.call_function(torch.split, (copies[x], sizes, dim))
        made.meta = dict(copy.meta)
        copy.replace_all_uses_with(made)
        graph.erase_node(copy)
    return fx.GraphModule(module, graph)


def _parts(node: fx.Node) -> tuple[fx.Node, list[int], int] | None:
    """What a node splits, into which sizes, along which dimension; None unless it does so by a tensor."""
    if node.target not in (torch.tensor_split, "tensor_split"):
        return None
    named: dict[str, Any] = dict(zip(("input", "by", "dim"), node.args, strict=False)) | dict(node.kwargs)
    by = next((named[name] for name in ("by", "tensor_indices_or_sections") if name in named), None)
    parts = node.meta.get("example_value")
    x, dim = named.get("input", named.get("self")), named.get("dim", 0)
    if not isinstance(by, fx.Node) or not isinstance(x, fx.Node) or not isinstance(dim, int) or parts is None:
        return None
    if not isinstance(by.meta.get("example_value"), Tensor):
        return None
    sizes = [part.shape[dim] for part in parts]
    return (x, sizes, dim) if all(isinstance(size, int) for size in sizes) else None
