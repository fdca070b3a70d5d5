"""Losses and activations for functions that are going to be differentiated: right at zeros, at ties and at kinks.

By magnitudes, as torch takes them apart, `|x|²` has no curve at 0, where the sign is 0. Here differences are squared as
they are, and where torch chooses a side at a kink, so does the form: the derivatives of a graph are those of eager.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.capture.data_checks import check_data
from weft.frontends.torch.capture.stop_gradients import gradients_of, stopped
from weft.frontends.torch.func.half_floats import widened
from weft.frontends.torch.transforms.differentiable_forms import written_in_strides

_ops: Any = torch.ops.aten
_MEAN = 1
_STEEP = 1e-12
"""Below it, torch takes it for p (1 - p), which the gradient of a cross entropy is divided by."""


def _reduced(losses: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    return (losses, losses.mean(), losses.sum())[reduction].to(dtype)


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    off = widened(x) - widened(target)
    size = off.abs()
    losses = size if beta == 0 else torch.where(size < beta, off * off * (0.5 / beta), size - 0.5 * beta)
    return _reduced(losses, reduction, torch.result_type(x, target))


def _huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    off = widened(x) - widened(target)
    size = off.abs()
    losses = torch.where(size < delta, 0.5 * off * off, delta * (size - 0.5 * delta))
    return _reduced(losses, reduction, torch.result_type(x, target))


def _huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Any:
    off = widened(x) - widened(target)
    slope = torch.where(off.abs() < delta, off, delta * torch.sign(off))
    share = 1 / x.numel() if reduction == _MEAN else 1.0
    return (slope * grad * share).to(x.dtype)


def _log_sigmoid_forward(x: Tensor) -> Any:
    wide = widened(x)
    buffer = torch.exp(-wide.abs()) if x.device.type == "cpu" else wide.new_zeros((0,))
    return (-torch.nn.functional.softplus(-wide, threshold=50)).to(x.dtype), buffer.to(x.dtype)


def _xlogy(x: Tensor, y: Tensor) -> Any:
    kind = torch.result_type(x, y)
    if not kind.is_floating_point:
        return NotImplemented
    a, b = widened(x.to(kind)), widened(y.to(kind))
    none = (a == 0) & (b <= 0)  # elsewhere the slope is log(y), at 0 too
    found = torch.where(none, 0, a * torch.log(torch.where(none, 1, b)))
    found = torch.where(torch.isnan(b), b, found).to(kind)
    slope = torch.where(none, stopped(a) * torch.log(torch.where(none, b, 1)), found).to(
        kind
    )  # of y it is x / y, at 0 / 0 too
    return gradients_of(found, slope)


def _xlogy_of_number(x: Tensor, y: float) -> Any:
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    wide = widened(x.to(kind))
    if math.isnan(y):
        return torch.full_like(wide, y).to(kind)
    logarithm = -math.inf if y == 0 else math.nan
    return (wide * math.log(y) if y > 0 else torch.where(wide == 0, 0, stopped(wide) * logarithm)).to(kind)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Any:
    """Where a logarithm has no bound, the slope has torch's: that of a parabola."""
    p, t = widened(x), widened(target)
    fixed, sides = stopped(p), stopped(t)
    for name, each in (("input", fixed), ("target", sides)):
        check_data(~((each >= 0) & (each <= 1)), "data", f"an element of the {name} is not between 0 and 1")
    yes, no = torch.log(fixed).clamp_min(-100), torch.log1p(-fixed).clamp_min(-100)
    steep = fixed * (1 - fixed) < _STEEP
    away = torch.where(steep, 0.5, p)
    known = -t * torch.log(away) - (1 - t) * torch.log1p(-away)
    parabola = (p - fixed) * (0.5 * (p + fixed) - sides) / _STEEP
    ends = -sides * yes - (1 - sides) * no + parabola + (t - sides) * (no - yes)
    losses = torch.where(steep, ends, known)
    return _reduced(losses if weight is None else losses * weight, reduction, x.dtype)


def _median(x: Tensor) -> Any:
    """Among equal ones, all have a part of the gradient."""
    if not x.is_floating_point() or x.dim() == 0 or not x.numel():
        return NotImplemented
    found = torch.median(x.reshape(-1), 0).values
    chosen = torch.isnan(x) & torch.isnan(found) | (x == found)
    return gradients_of(found, torch.where(chosen, x, 0).sum() / chosen.sum())


def _hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    clamped = torch.clamp(x, low, high)  # taken apart below
    return torch.where((x > low) & (x < high), clamped, stopped(clamped))


def _common_type(*tensors: Tensor) -> torch.dtype:
    """That of an operation on all of these: one without dimensions counts only where it is of a higher kind."""
    kept = [each for each in tensors if each.dim()] or tensors
    kind, widest = (reduce(torch.promote_types, (each.dtype for each in group)) for group in (kept, tensors))
    return kind if kind.is_floating_point else widest


def _clamp(x: Tensor, low: Any = None, high: Any = None, **named: Any) -> Any:
    """Between bounds, which are inside: there the gradient is that of the tensor, all of it; at NaN there is none."""
    low, high = named.get("min", low), named.get("max", high)
    kind = _common_type(x, *(bound for bound in (low, high) if isinstance(bound, Tensor)))
    if not kind.is_floating_point:
        return NotImplemented
    x = x.to(kind)
    low, high = (
        bound.to(kind)
        if isinstance(bound, Tensor)
        else None
        if bound is None
        else torch.scalar_tensor(bound, dtype=kind, device=x.device)
        for bound in (low, high)
    )
    found = x if low is None else torch.maximum(x, low)
    found = stopped(found if high is None else torch.minimum(found, high))
    if high is not None:
        found = torch.where(x > high if low is None else (x > high) | (high < low), high, found)
    if low is not None:
        found = torch.where(x < low if high is None else (x < low) & (low < high), low, found)
    above, below = None if low is None else x >= low, None if high is None else x <= high
    inside = above if below is None else below if above is None else above & below
    return x.clone() if inside is None else torch.where(inside, x, found)


def _clamp_max(x: Tensor, high: Any) -> Any:
    return _clamp(x, None, high)


def _as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    found = written_in_strides(x, src, size, stride, storage_offset) if x.numel() else None
    return NotImplemented if found is None else found


KINKED: frozenset[Any] = frozenset((_ops.hardswish.default,))
"""Left whole: the op's own rule has torch's slopes at its kinks, its parts have others."""
SMOOTH: dict[Any, Callable[..., Any]] = {
    _ops.smooth_l1_loss.default: _smooth_l1_loss,
    _ops.huber_loss.default: _huber_loss,
    _ops.huber_loss_backward.default: _huber_loss_backward,
    _ops.log_sigmoid_forward.default: _log_sigmoid_forward,
    _ops.xlogy.Tensor: _xlogy,
    _ops.xlogy.Scalar_Other: _xlogy_of_number,
    _ops.binary_cross_entropy.default: _binary_cross_entropy,
    _ops.median.default: _median,
    _ops.hardtanh.default: _hardtanh,
    _ops.as_strided_scatter.default: _as_strided_scatter,
    **{each: _clamp for each in (_ops.clamp.default, _ops.clamp.Tensor)},
    **{each: _clamp for each in (_ops.clamp_min.default, _ops.clamp_min.Tensor)},
    **{each: _clamp_max for each in (_ops.clamp_max.default, _ops.clamp_max.Tensor)},
}
