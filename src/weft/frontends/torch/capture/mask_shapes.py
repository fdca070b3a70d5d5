"""The shapes that masks of attention may have, asked of the graph that Dynamo captured, before torch takes it apart.

    scores 2x3x5x7, mask 5x7     →     the graph as it is
    scores 2x3x5x7, mask 1x2x3x5x7     →     ShapeError, where eager has a RuntimeError

Eager adds a mask to the scores in place, so it may repeat along them and never they along it. Of tensors that stand for
others torch adds out of place: a trace takes larger masks, and every backend would then give a larger result.
"""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from torch.nn import functional

from weft.errors import ShapeError
from weft.frontends.torch.locations import first_line

ATTENTION: tuple[Any, ...] = (
    functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten.scaled_dot_product_attention,
)
"""As graphs of Dynamo's call it."""
_QUERY, _KEY, _MASK = ("query", 0), ("key", 1), ("attn_mask", 3)


def check_masks(module: fx.GraphModule) -> None:
    """Raise for masks that are larger than the scores they are added to."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in ATTENTION:
            _check(node)


def _check(node: fx.Node) -> None:
    query, key, mask = (_value(node, *each) for each in (_QUERY, _KEY, _MASK))
    if query is None or key is None or mask is None or min(query.dim(), key.dim()) < 2:
        return
    scores = _scores(query, key)
    if mask.dim() <= len(scores) and not any(
        _is_one(there) and _is_more(size) for size, there in zip(reversed(mask.shape), reversed(scores), strict=False)
    ):
        return
    raise ShapeError(
        f"a mask of {list(mask.shape)} is larger than the scores of attention, {list(scores)}",
        location=first_line([node]),
        hint="a mask may repeat along the scores, not they along it: take leading dimensions off, or expand the query",
    )


def _value(node: fx.Node, name: str, place: int) -> Tensor | None:
    given = node.args[place] if len(node.args) > place else node.kwargs.get(name)
    value = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    # Of a subclass, and inside a transformation, eager adds out of place, too.
    return value if type(value) is FakeTensor and not is_functorch_wrapped_tensor(value) else None


def _scores(query: Tensor, key: Tensor) -> tuple[Any, ...]:
    """The shape of the products of queries and keys; sizes that differ are for torch to refuse."""
    rank = max(query.dim(), key.dim())
    rows, columns = ((1,) * (rank - each.dim()) + tuple(each.shape) for each in (query, key))
    batch = [b if _is_one(a) else a for a, b in zip(rows[:-2], columns[:-2], strict=True)]
    return (*batch, rows[-2], columns[-2])


def _is_one(size: Any) -> bool:
    """Whether a size is 1; one that is a symbol is not asked, so that no program is made for it."""
    return isinstance(size, int) and size == 1


def _is_more(size: Any) -> bool:
    """Whether a size is not 1: Dynamo makes no symbols of sizes of 1, other than for numbers out of tensors.

    What is computed from symbols may be 1 all the same, and is not asked: that would make a program for it.
    """
    if isinstance(size, int):
        return size != 1
    return size.node.expr.is_Symbol and not has_free_unbacked_symbols(size)
