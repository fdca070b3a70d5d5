"""Sums of powers and of Chebyshev polynomials, in which special functions are written down, and the floats for them."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A sum of Chebyshev polynomials in x/2, as Clenshaw adds it up; the highest first."""
    first, second, third = torch.full_like(x, coefficients[0]), torch.zeros_like(x), torch.zeros_like(x)
    for c in coefficients[1:]:
        first, second, third = x * first - second + c, first, second
    return 0.5 * (first - third)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """By Horner's rule, the highest power first."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def widened(x: Tensor) -> Tensor:
    """As what a special function is computed in: float64, or else float32."""
    if x.is_complex():
        raise NotImplementedError("complex numbers, which torch refuses")
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def float_result(x: Tensor) -> torch.dtype:
    """The type of what a special function gives."""
    return x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()


def together(x: Any, y: Any) -> tuple[torch.dtype, Tensor, Tensor]:
    """The type of what a special function of two tensors or numbers gives, and both as tensors, numbers in full."""
    kind = torch.result_type(x, y)
    device = (x if isinstance(x, Tensor) else y).device
    wide = (torch.float64 if isinstance(each, float) else None for each in (x, y))
    first, second = (
        torch.as_tensor(each, dtype=dtype, device=device) for each, dtype in zip((x, y), wide, strict=True)
    )
    return kind if kind.is_floating_point else torch.get_default_dtype(), first, second


def float_operands(x: Any, y: Any, dtype: torch.dtype | None = None) -> tuple[torch.dtype, Tensor, Tensor]:
    """The type of what a special function of two tensors or numbers gives; and both, in `dtype` or it, of one shape."""
    kind = torch.result_type(x, y)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    device = (x if isinstance(x, Tensor) else y).device
    both = (torch.as_tensor(each, dtype=dtype or kind, device=device) for each in (x, y))
    first, second = torch.broadcast_tensors(*both)
    return kind, first.contiguous(), second.contiguous()
