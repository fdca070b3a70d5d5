"""A tensor descriptor made on the host: a tensor, how it lies in memory, and the tile that a kernel takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError

_ALIGNMENT = 16
_MOST_SIDES = 5


class DescriptorError(WeftError, AssertionError):
    """A tensor that a descriptor cannot be made of. Triton raises AssertionError, which this is too."""


@dataclass
class TensorDescriptor:
    """What a kernel gets as a descriptor: `desc.load([i, j])` is a tile of `block_shape`."""

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"

    def __post_init__(self) -> None:
        rank, elements = len(self.shape), self.base.dtype
        size = elements.itemsize
        traced = type(self.base).__name__ in ("FakeTensor", "FunctionalTensor")
        floats = getattr(elements, "is_floating_point", False)
        for holds, message in (
            (len(self.strides) == rank, f"rank mismatch: {rank} sizes and {len(self.strides)} strides"),
            (len(self.block_shape) == rank, f"rank mismatch: {rank} sizes and a block of {len(self.block_shape)}"),
            (1 <= rank <= _MOST_SIDES, f"the rank is 1 to {_MOST_SIDES}, not {rank}"),
            (traced or self.base.data_ptr() % _ALIGNMENT == 0, "base must be 16-byte aligned"),
            (all(s * size % _ALIGNMENT == 0 for s in self.strides[:-1]), "strides must be 16-byte aligned"),
            (all(s > 0 for s in self.shape), "shape must be positive"),
            (self.strides[-1:] == (1,) or list(self.strides[-1:]) == [1], "Last dimension must be contiguous"),
            (self.padding in ("zero", "nan"), f"padding is zero or nan, not {self.padding}"),
            (self.padding == "zero" or floats, "padding `nan` needs floating point elements"),
        ):
            if not holds:
                raise DescriptorError(message)

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        """A descriptor of a whole tensor."""
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)
