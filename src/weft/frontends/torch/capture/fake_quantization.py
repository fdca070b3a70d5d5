"""Fake quantization, which quantization-aware training rounds by: values of few bits in their own type, and whether
each was within the range.

    q = round(x / scale) + zero_point
    result = (clamp(q, low, high) - zero_point) * scale,   mask = low <= q <= high

As in eager, x is multiplied with the quotient 1 / scale in f32, and what is not a number becomes the lowest. With one
scale for all, results are rounded to f32 where x is wider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.frontends.torch.capture.data_checks import check_data


def per_tensor(x: Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    """With numbers; eager refuses a zero point out of the range."""
    if not low <= zero_point <= high:
        return NotImplemented
    single = np.float32(scale)
    result, mask = _rounded(x, float(single), float(np.float32(1) / single), zero_point, low, high)
    return result.float().to(x.dtype), mask


def by_tensors(x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int) -> Any:
    """With a scale and a zero point that are computed, where it is switched on."""
    single = scale.reshape(()).float()
    result, mask = _rounded(x, single, single.reciprocal(), zero_point.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, result.float().to(x.dtype), x), mask | ~on


def per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int) -> Any:
    """With a scale and a zero point for each slice; eager looks at the values of whole zero points alone."""
    if zero_point.is_floating_point():
        return NotImplemented
    check_data(
        (zero_point < low) | (zero_point > high), "data", "`zero_point` must be between `quant_min` and `quant_max`."
    )
    shape = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())]
    single = scale.reshape(shape).float()
    return _rounded(x, single, single.reciprocal(), zero_point.reshape(shape), low, high)


def _rounded(x: Tensor, scale: Any, inverse: Any, zero_point: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    wide = x if x.dtype == torch.float64 else x.float()
    q = torch.round(wide * inverse) + zero_point
    inside = torch.fmin(torch.fmax(q, torch.full_like(q, low)), torch.full_like(q, high))
    return ((inside - zero_point) * scale).to(x.dtype), (q >= low) & (q <= high)
