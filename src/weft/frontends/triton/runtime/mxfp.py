"""Block-scaled formats on the host: 4-bit floats (e2m1) and scales that are powers of two (e8m0), in torch tensors.

What `triton.tools.mxfp` offers to prepare arguments for `tl.dot_scaled` and to check results.
"""

# torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import math
from typing import Any

import torch

from weft.frontends.triton.errors import KernelTypeError, KernelValueError

_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS, _NAN = 127, 255


class _Coded:
    """Numbers kept as bytes of a code."""

    data: torch.Tensor

    def __init__(self, data: torch.Tensor | None = None, size: Any = None, device: Any = None) -> None:
        self.device = device
        if data is not None:
            if not isinstance(data, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise KernelTypeError(f"Parameter data must be a torch tensor, got {type(data).__name__}")
            self.device = data.device
            self.data = self._encoded(data)
        elif size is not None:
            self.size = size if isinstance(size, tuple) else (size,)
        else:
            raise KernelValueError("Either parameter data or size must be provided")

    def _encoded(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _checked(self, dtype: torch.dtype) -> None:
        if dtype != torch.float32:
            raise KernelTypeError(f"Currently only float32 is supported to convert to, got {dtype}")


class MXFP4Tensor(_Coded):
    """4-bit floats: a sign, two bits of exponent, one of mantissa; neither ∞ nor NaN."""

    def random(self) -> MXFP4Tensor:
        """Fill with random codes."""
        self.data = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers, as fp32."""
        self._checked(dtype)
        table = torch.tensor([*_FOUR_BITS, *(-number for number in _FOUR_BITS)], device=self.data.device)
        return table[self.data.long()]

    def _encoded(self, values: torch.Tensor) -> torch.Tensor:
        """The nearest numbers, of two equally near the one with an even mantissa; what is too large, the largest."""
        size = values.abs().nan_to_num(_FOUR_BITS[-1], _FOUR_BITS[-1])
        code = torch.zeros_like(values, dtype=torch.uint8)
        for lower in range(7):
            middle = (_FOUR_BITS[lower] + _FOUR_BITS[lower + 1]) / 2
            code += (size >= middle) if lower % 2 else (size > middle)
        return code | (torch.signbit(values).to(torch.uint8) << 3)

    def to_packed_tensor(self, dim: int) -> torch.Tensor:
        """Two codes to a byte along an axis, the first in the lower half; an odd one is followed by zero."""
        if not 0 <= dim < self.data.ndim:
            raise KernelValueError(f"axis {dim} is outside of a tensor of {self.data.ndim} axes")
        codes = self.data.movedim(dim, -1)
        if codes.shape[-1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        return (codes[..., ::2] | (codes[..., 1::2] << 4)).movedim(-1, dim).contiguous()

    def unpack_packed_tensor(self, packed_tensor: torch.Tensor, dim: int, original_shape: Any) -> torch.Tensor:
        """The codes of a packed tensor, one to a byte."""
        packed = packed_tensor.movedim(dim, -1)
        codes = torch.stack([packed & 0xF, packed >> 4], -1).flatten(-2)[..., : original_shape[dim]]
        return codes.movedim(-1, dim).contiguous()


class MXScaleTensor(_Coded):
    """Scales: powers of two, kept as a byte of exponent; 255 is NaN."""

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        """Fill with random scales between two bounds."""
        least = 0 if low is None else max(0, int(math.log2(low)) + _BIAS)
        greatest = _NAN - 1 if high is None else min(_NAN - 1, max(0, int(math.log2(high)) + _BIAS))
        if least > greatest:
            raise KernelValueError(f"Low must be less than or equal to high, got {low} and {high}")
        self.data = torch.randint(least, greatest + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        """The scales, as fp32."""
        self._checked(dtype)
        scale = torch.exp2(self.data.to(torch.float64) - _BIAS).to(torch.float32)
        return scale.masked_fill(self.data == _NAN, math.nan)

    def _encoded(self, values: torch.Tensor) -> torch.Tensor:
        """The powers of two below; what is not positive and finite becomes NaN."""
        good = (values > 0) & values.isfinite()
        exponent = torch.floor(torch.log2(values.where(good, torch.ones_like(values)))) + _BIAS
        return exponent.clamp(0, _NAN - 1).to(torch.uint8).masked_fill(~good, _NAN)
