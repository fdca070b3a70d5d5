"""Sizes that attention needs to be equal: torch traces it without asking, and its kernels refuse others.

`compile_graph` asks before a graph is looked up in the cache: what holds of the sizes is part of its key.
"""

# Torch's values and operators have no types that can be followed.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_PREFIX = "aten::_scaled_dot_product_"
_OPERANDS = ("query", "key", "value")


def ask_attention_sizes(graph: fx.Graph) -> None:
    """Guard that keys and values are as many, and that all have the same heads, where symbols leave that open."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target.name().startswith(_PREFIX):
            continue
        places = {argument.name: place for place, argument in enumerate(node.target._schema.arguments)}
        q, k, v = (_traced(node.args[places[name]]) for name in _OPERANDS)
        if any(not isinstance(each, torch.Tensor) or each.dim() != 4 for each in (q, k, v)):
            continue
        for dim in (0, 1):
            _ask(q.shape[dim], k.shape[dim])
            _ask(k.shape[dim], v.shape[dim])
        _ask(k.shape[2], v.shape[2])
        _ask(q.shape[3], k.shape[3])


def _traced(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else None


def _ask(a: Any, b: Any) -> None:
    if (isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt)) and not free_unbacked_symbols([a, b]):
        bool(a == b)  # torch notes what came out, and that it must come out so again
