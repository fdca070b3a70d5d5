"""Weights of few bits as programs widen them in torch: what the suites `gemv` and `moe` multiply with."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

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
