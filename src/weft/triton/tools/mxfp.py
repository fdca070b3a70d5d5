"""Block-scaled numbers on the host, as the OCP microscaling formats define them: E2M1 elements and E8M0 scales.

An E2M1 number is a code of four bits, a sign and one of eight magnitudes; an E8M0 scale is a power of two.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from itertools import pairwise

import torch

from weft.errors import WeftError

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS, NAN = 127, 255


class FormatError(WeftError, ValueError, AssertionError):
    """Data, a size or an axis that the format does not have. Triton raises either of the two."""


class _Codes:
    """A tensor of codes, one in each byte."""

    data: torch.Tensor

    def __init__(
        self,
        data: torch.Tensor | None = None,
        size: int | tuple[int, ...] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.device = device if data is None else data.device
        if data is not None:
            self.data = self._from_float(data)
        elif size is not None:
            self.size = size if isinstance(size, tuple) else (size,)
        else:
            raise FormatError("there is neither data nor a size")

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def _only_float32(dtype: torch.dtype) -> None:
    if dtype is not torch.float32:
        raise FormatError(f"codes become float32, not {dtype}")


class MXFP4Tensor(_Codes):
    """Numbers in E2M1: of a tensor, rounded to the nearest (ties to even), or random ones of a size."""

    def random(self) -> MXFP4Tensor:
        self.data = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that the codes stand for."""
        _only_float32(dtype)
        table = torch.tensor([*MAGNITUDES, *(-each for each in MAGNITUDES)], dtype=dtype, device=self.data.device)
        return table[self.data.long()]

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        # What is no number or infinite becomes the largest magnitude, as what is too large does.
        sizes = torch.nan_to_num(values.float().abs(), nan=MAGNITUDES[-1], posinf=MAGNITUDES[-1])
        middles = torch.tensor([(a + b) / 2 for a, b in pairwise(MAGNITUDES)])
        middles = middles.to(values.device)
        below, above = torch.bucketize(sizes, middles), torch.bucketize(sizes, middles, right=True)
        codes = torch.where(below % 2 == 0, below, above)  # they differ on a tie only: one of them is even
        return (codes + torch.signbit(values) * 8).to(torch.uint8)

    def to_packed_tensor(self, dim: int) -> torch.Tensor:
        """Two codes in each byte along an axis, the first in the low half."""
        data = self.data
        if not 0 <= dim < data.ndim:
            raise FormatError(f"there is no axis {dim} in a tensor of {data.ndim}")
        if data.shape[dim] % 2:
            padding = list(data.shape)
            padding[dim] = 1
            data = torch.cat([data, data.new_zeros(padding)], dim)
        low, high = data.unflatten(dim, (-1, 2)).unbind(dim + 1)
        return low | (high << 4)

    def unpack_packed_tensor(
        self, packed_tensor: torch.Tensor, dim: int, original_shape: tuple[int, ...]
    ) -> torch.Tensor:
        """The codes of a packed tensor, one in each byte."""
        both = torch.stack([packed_tensor & 15, packed_tensor >> 4], dim + 1).flatten(dim, dim + 1)
        return both.narrow(dim, 0, original_shape[dim]).to(torch.uint8)


class MXScaleTensor(_Codes):
    """Scales in E8M0: of a tensor of positive numbers, rounded down to powers of two, or random ones of a size."""

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        """Powers of two between two numbers, never the code for NaN."""
        first = 0 if low is None else max(0, int(math.log2(low)) + BIAS)
        last = NAN - 1 if high is None else min(NAN - 1, max(0, int(math.log2(high)) + BIAS))
        if first > last:
            raise FormatError(f"there is no power of two from {low} to {high}")
        self.data = torch.randint(first, last + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that the codes stand for."""
        _only_float32(dtype)
        powers = torch.exp2(self.data.double() - BIAS)
        return torch.where(self.data == NAN, torch.nan, powers).to(dtype)

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        valid = torch.isfinite(values) & (values > 0)
        _, exponents = torch.frexp(torch.where(valid, values, 1.0))
        codes = (exponents - 1 + BIAS).clamp(0, NAN - 1)
        return torch.where(valid, codes, NAN).to(torch.uint8)
