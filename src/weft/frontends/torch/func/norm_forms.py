"""Norms, distances and deviations for functions that are going to be differentiated: without a slope at zero.

sqrt(Σx²)  ─►  where(Σx² = 0, 0, sqrt(where(Σx² = 0, 1, Σx²)))        whose gradient at 0 is 0, as torch's, not 0 / 0
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.func.half_floats import widened

_ops: Any = torch.ops.aten


def _root(square: Tensor) -> Tensor:
    """The square root, without a slope at 0."""
    none = square == 0
    return torch.where(none, 0, torch.sqrt(torch.where(none, 1, square)))


def _norm(x: Tensor, order: float, dim: Any, keepdim: bool) -> Tensor:
    """By squares or powers, without a slope where a norm is 0, nor that of an element where it has no bound."""
    if order == 2:
        return _root((x * x).sum(dim, keepdim))
    zero = x == 0
    powers = torch.where(zero, 0 if order > 0 else math.inf, torch.where(zero, 1, x).abs().pow(order))
    power = powers.sum(dim, keepdim)
    none, beyond = power == 0, torch.isinf(power)
    found = torch.where(none | beyond, 1, power).pow(1 / order)
    ends = (0.0, math.inf) if order > 0 else (math.inf, 0.0)
    return torch.where(none, ends[0], torch.where(beyond, ends[1], found))


def _vector_norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sums and extremes of magnitudes, and counts, as they are."""
    if order in (0, 1) or math.isinf(order) or not x.is_floating_point():
        return NotImplemented
    kind = dtype or x.dtype
    return _norm(widened(x.to(kind)), order, dim, keepdim).to(kind)


def _dist(x: Tensor, y: Tensor, p: float = 2) -> Any:
    return torch.linalg.vector_norm(x - y, p)


def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _euclidean_dist(x: Tensor, y: Tensor) -> Any:
    """By a product of matrices, as torch's."""
    a, b = widened(x), widened(y)
    squares = (a * a).sum(-1, keepdim=True) + (b * b).sum(-1).unsqueeze(-2)
    return _root((squares - 2 * (a @ b.mT)).clamp_min(0)).to(x.dtype)


def _pdist(x: Tensor, p: float = 2.0) -> Any:
    count = x.shape[0]
    first, second = (torch.tensor(each, device=x.device) for each in _pairs(count))
    return torch.linalg.vector_norm(x.index_select(0, first) - x.index_select(0, second), p, -1)


def _pairs(count: int) -> tuple[list[int], list[int]]:
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return _root(torch.var(widened(x), dim, correction=correction, keepdim=keepdim)).to(x.dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _std_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    wide = widened(x)
    mean = wide.mean(list(range(x.dim())) if dim is None else dim, keepdim)
    return _std(x, dim, correction=correction, keepdim=keepdim), mean.to(x.dtype)


NORMS: dict[Any, Callable[..., Any]] = {
    _ops.linalg_vector_norm.default: _vector_norm,
    _ops.dist.default: _dist,
    _ops._cdist_forward.default: _cdist,
    _ops._pdist_forward.default: _pdist,
    _ops._euclidean_dist.default: _euclidean_dist,
    _ops.std.correction: _std,
    _ops.std_mean.correction: _std_mean,
}
