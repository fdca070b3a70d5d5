"""Weights of few bits as programs widen them in torch: what the suites `gemv` and `moe` multiply with."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor


def nibbles(codes: Tensor) -> Tensor:
    """The two numbers of 4 bits in every byte, the low one first, along the last dimension."""
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def fp4_values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The floats of 4 bits (e2m1) in bytes."""
    numbers = nibbles(codes)
    sizes = numbers & 7
    values = torch.where(sizes < 5, sizes * 0.5, torch.where(sizes == 7, 6.0, sizes - 2.0))
    return torch.where(numbers > 7, -values, values).to(dtype)


def mxfp4(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights with a power of two for every 32 neighbours, as bytes that are 127 above its exponent."""
    powers = torch.exp2(exponents.float() - 127).to(dtype)
    return (fp4_values(codes, dtype).unflatten(-1, (-1, 32)) * powers[..., None]).flatten(-2)


_GROUPS = {"int4": 128, "int4_64": 64, "int4_32": 32, "mxfp4": 32, "nvfp4": 16}
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST_FP4, _LARGEST_FP8 = 6.0, 448.0


def coded(weight: Tensor, form: str) -> Tensor:
    """What is left of a matrix that `quantize=form` has put into few bits: what codes and factors stand for.

    They are in float64, so that what a kernel adds to the error of the form itself can be told.
    """
    wide = weight.float()
    if form in ("int8", "fp8"):
        scales = _largest(wide, 127.0 if form == "int8" else _LARGEST_FP8)
        codes = (wide / scales).round() if form == "int8" else (wide / scales).to(torch.float8_e4m3fn)
        return codes.double() * scales
    groups = wide.unflatten(-1, (-1, _GROUPS[form]))
    if form.startswith("int4"):
        scales = _largest(groups, 7.0).to(weight.dtype).float()
        codes = (groups / scales).round().clamp(-8, 7)
    else:
        scales = _powers(groups) if form == "mxfp4" else _two_levels(wide, groups)
        codes = _nearest_fp4(groups / torch.where(scales == 0, 1.0, scales))
    return (codes.double() * scales).flatten(-2)


def _largest(values: Tensor, most: float) -> Tensor:
    """The factors that make the largest of each group `most`."""
    scales = values.abs().amax(-1, keepdim=True) / most
    return torch.where(scales == 0, 1.0, scales)


def _powers(groups: Tensor) -> Tensor:
    """Powers of two, two below the largest of each group."""
    return torch.exp2(torch.frexp(groups.abs().amax(-1, keepdim=True)).exponent.float() - 3)


def _two_levels(wide: Tensor, groups: Tensor) -> Tensor:
    """Factors of 8 bits for groups, times one for all."""
    whole = wide.abs().max() / (_LARGEST_FP4 * _LARGEST_FP8)
    return (groups.abs().amax(-1, keepdim=True) / _LARGEST_FP4 / whole).to(torch.float8_e4m3fn).float() * whole


def _nearest_fp4(values: Tensor) -> Tensor:
    """Of two that are as near, the one whose code is even."""
    known = torch.tensor(_FP4, device=values.device)
    distances = (values.abs()[..., None] - known).abs()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=values.device)  # the first of several that are as near
    chosen = known[order[distances[..., order].argmin(-1)]]
    return torch.copysign(chosen, values)
