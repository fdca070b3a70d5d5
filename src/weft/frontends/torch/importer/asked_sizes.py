"""Sizes that must be equal, though their symbols do not say so: torch traces attention without asking, and where it
asks of products, of tokens and their labels say, their factors stay apart.

`compile_graph` asks before a graph is looked up in the cache: what holds of the sizes is part of its key.
"""

# Torch's values, its operators and sympy have no types that can be followed.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from weft.frontends.torch.importer.facts import environment_of

_ATTENTION = "aten::_scaled_dot_product_"
_OPERANDS = ("query", "key", "value")
_MOST_FACTORS = 3


def ask_sizes(module: fx.GraphModule) -> None:
    """Guard what a graph needs of its symbolic sizes, so that those that are equal have one symbol."""
    environment = environment_of(module)
    if environment is None:
        return
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.name().startswith(_ATTENTION):
            _ask_attention(node)
    for guard in list(environment.guards):
        if type(guard.expr).__name__ == "Equality":
            for a, b in _factors(environment, *(environment.replace(side) for side in guard.expr.args)):
                environment.evaluate_expr(guard.expr.func(a, b))


def _ask_attention(node: fx.Node) -> None:
    """Keys and values are as many, and all have the same heads."""
    target: Any = node.target
    places = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(places, node.args, strict=False)), **node.kwargs}
    q, k, v = (_traced(given.get(name)) for name in _OPERANDS)
    if any(not isinstance(each, torch.Tensor) or each.dim() != 4 for each in (q, k, v)):
        return
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


def _factors(environment: Any, left: Any, right: Any) -> list[tuple[Any, Any]]:
    """The pairs of symbols by which two expressions that must be equal are, `s0 * s1 == s2 * s3` if s0 is s2 and s1 s3.

    Those are paired that were equal in the call that was traced.
    """
    theirs, ours = (sorted(a.free_symbols - b.free_symbols, key=str) for a, b in ((left, right), (right, left)))
    if not 1 < len(theirs) == len(ours) <= _MOST_FACTORS:
        return []
    values = getattr(environment, "backed_var_to_val", None) or environment.var_to_val
    if any(each not in values for each in (*theirs, *ours)):
        return []
    for order in permutations(ours):
        pairs = list(zip(theirs, order, strict=True))
        if all(values[a] == values[b] for a, b in pairs) and left.xreplace(dict(pairs)) == right:
            return pairs
    return []
