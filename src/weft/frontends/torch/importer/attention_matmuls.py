"""Products of a captured graph that are attention, written out: `recognize_attention` is to see them, no library."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_aten: Any = torch.ops.aten
_POWERS = {_aten._safe_softmax.default, _aten._softmax.default, _aten.exp.default}
_VIEWS = ("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "slice", "alias", "detach")
_COPIES = ("_to_copy", "clone", "full_like")
_REDUCTIONS = ("amax", "max", "sum", "any", "all", "cat")
_BETWEEN = {
    operator.getitem,
    *_POWERS,
    *(
        getattr(getattr(_aten, name), kind)
        for name in (*_VIEWS, *_COPIES, *_REDUCTIONS)
        for kind in getattr(_aten, name).overloads()
    ),
}


def may_be_attention(node: fx.Node) -> bool:
    """Whether a product makes the scores of attention, or weighs its values."""
    if node.target is not _aten.bmm.default:
        return False
    return _weighing(node) is not None or any(_weighing(each) is node for each in _products_before(node))


def _weighing(scores: fx.Node) -> fx.Node | None:
    """The product whose weights are made of scores, through powers, if nothing else reads what is between them."""
    left, between = [scores], {scores}
    found: set[fx.Node] = set()
    while left:
        value = left.pop()
        for user in value.users:
            if user.target is _aten.bmm.default and user.args[0] is value and user.args[1] is not value:
                found.add(user)
            elif not _is_between(user):
                return None
            elif user not in between:
                between.add(user)
                left.append(user)
    softened = any(each.target in _POWERS for each in between)
    return found.pop() if softened and len(found) == 1 else None


def _products_before(node: fx.Node) -> list[fx.Node]:
    """The products that a product's first factor is made of."""
    left, seen = [node.args[0]], {node}
    found: list[fx.Node] = []
    while left:
        value = left.pop()
        if not isinstance(value, fx.Node) or value in seen:
            continue
        seen.add(value)
        if value.target is _aten.bmm.default:
            found.append(value)
        elif _is_between(value):
            left += value.all_input_nodes
    return found


def _is_between(node: fx.Node) -> bool:
    """Whether a call may stand between the two products: it works on single scores, or on lines of them."""
    tags: Any = getattr(node.target, "tags", ())
    return node.target in _BETWEEN or torch.Tag.pointwise in tags
