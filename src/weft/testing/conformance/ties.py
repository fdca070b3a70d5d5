"""Sorting where keys are equal: an unstable sort leaves their order open, and the conformance runs accept any of it.

Nothing else is accepted. Places must be distinct and hold eager's keys in eager's order, and gradients must be eager's
but for what equal keys exchange: then `opinfo_cases` compares with eager as if it had put equal keys in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

# The operators that sort, and the names of their arguments after the keys.
SORTING: Mapping[str, Sequence[str]] = {
    "sort": ("dim", "descending", "stable"),
    "argsort": ("dim", "descending", "stable"),
    "msort": (),
    "topk": ("k", "dim", "largest", "sorted"),
}


def eager_in_the_order_of(actual: Any, eager: Any, op: str, arguments: Any) -> Any:
    """What eager gives, with equal keys in the order of `actual`; as it is, where `actual` differs in anything else.

    `actual` and `eager` hold outputs and gradients, as in `opinfo_cases`; `arguments` are those of the call.
    """
    keys, positional, named = arguments
    given = dict(zip(SORTING[op], positional, strict=False)) | named
    if given.get("stable") or not keys.dim():
        return eager
    dim = 0 if op == "msort" else given.get("dim", -1)
    leaves, structure = pytree.tree_flatten(eager["outputs"])
    mine, my_structure = pytree.tree_flatten(actual["outputs"])
    if my_structure != structure:
        return eager
    if op == "msort":  # the places are not among the results: only the gradient follows them
        return eager | {"gradients": _exchanged(actual["gradients"], eager["gradients"], keys.detach(), dim)}
    if not is_order_of_equal_keys(mine[-1], leaves[-1], keys.detach(), dim):
        return eager
    outputs = pytree.tree_unflatten([*leaves[:-1], mine[-1]], structure)
    return eager | {"outputs": outputs, "gradients": _moved(eager["gradients"], leaves[-1], mine[-1], dim)}


def is_order_of_equal_keys(mine: Tensor, theirs: Tensor, keys: Tensor, dim: int) -> bool:
    """Whether places are those of the same keys in the same order, each taken once."""
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    if bool(((mine < 0) | (mine >= keys.shape[dim])).any()):
        return False
    distinct = bool((mine.sort(dim).values.diff(dim=dim) != 0).all())
    return distinct and _same(keys.gather(dim, mine), keys.gather(dim, theirs))


def _moved(gradients: Any, theirs: Tensor, mine: Tensor, dim: int) -> Any:
    """The gradients of the keys at eager's places `theirs`, at the places `mine`; all others are zero."""

    def moved(gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient).scatter(dim, mine, gradient.gather(dim, theirs))

    return pytree.tree_map_only(Tensor, moved, gradients)


def _exchanged(mine: Any, theirs: Any, keys: Tensor, dim: int) -> Any:
    """The gradients `mine`, if each key has one that eager gives to an equal key, and none is used twice."""
    if not mine or not theirs:
        return theirs
    ours, eagers = ([_pairs(keys, gradient, dim) for gradient in gradients] for gradients in (mine, theirs))
    same = all(_same(a, c) and _same(b, d) for (a, b), (c, d) in zip(ours, eagers, strict=True))
    return mine if same else theirs


def _pairs(keys: Tensor, gradient: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and their gradients, ordered by both."""
    by_gradient = gradient.sort(dim=dim, stable=True)
    by_key = keys.gather(dim, by_gradient.indices).sort(dim=dim, stable=True)
    return by_key.values, by_gradient.values.gather(dim, by_key.indices)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
