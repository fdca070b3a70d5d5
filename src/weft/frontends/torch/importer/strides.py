"""Strides: what eager execution gives a tensor, which is part of what torch promises about a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.frontends.torch.importer.sizes import sizes_of
from weft.ir.expr import Size, is_nonnegative
from weft.ir.types import contiguous_strides


def unusual_strides(meta: Any, exact: bool = False) -> tuple[Size, ...] | None:
    """The strides of a captured tensor where they are not row-major, None where they are.

    Unless `exact`, the stride of a dimension of size 1 does not count.
    """
    shape, strides = sizes_of(meta.shape), sizes_of(meta.stride())
    if meta.is_complex():  # in the form in which the parts alternate
        shape, strides = (*shape, 2), (*(stride * 2 for stride in strides), 1)
    usual = contiguous_strides(shape)
    if all(a == b or (size == 1 and not exact) for a, b, size in zip(strides, usual, shape, strict=True)):
        return None
    if not exact and 0 in shape:
        return None
    return strides


def dense_strides(meta: Any) -> tuple[Size, ...] | None:
    """The strides of a captured tensor that lies dense in memory, but not row-major: with channels innermost, say."""
    strides = None if meta.is_complex() else unusual_strides(meta)
    if strides is None:
        return None
    try:
        storage_order(meta)
    except UnsupportedError:
        return None
    return strides


def restrided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with these strides: itself where it has them already, a view where only such as lead nowhere differ,
    else a copy."""
    if tensor.stride() == tuple(strides):
        return tensor
    shape = tensor.shape
    if all(size == 1 or a == b for size, a, b in zip(shape, tensor.stride(), strides, strict=True)):
        return tensor.as_strided(shape, strides)
    repeated = [d for d, (size, stride) in enumerate(zip(shape, strides, strict=True)) if stride == 0 and size > 1]
    once = tensor
    for d in repeated:
        once = once.narrow(d, 0, 1)
    result = torch.empty_strided(once.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(once)
    return result.expand(shape) if repeated else result


def storage_order(meta: Any) -> tuple[int, ...]:
    """The dimensions of a captured tensor from the outermost in memory to the innermost.

    Permuted so, the tensor is row-major; one that has gaps or overlaps in memory is not supported.
    """
    shape, strides = sizes_of(meta.shape), sizes_of(meta.stride())
    order = sorted(range(len(shape)), key=lambda d: (_Descending(strides[d]), d))
    expected = contiguous_strides([shape[d] for d in order])
    if any(strides[d] != stride and shape[d] != 1 for d, stride in zip(order, expected, strict=True)):
        raise UnsupportedError("a tensor with gaps in memory")
    return tuple(order)


class _Descending:
    """Orders strides from the greatest to the least, where that can be told."""

    def __init__(self, stride: Size) -> None:
        self.stride = stride

    def __lt__(self, other: _Descending) -> bool:
        difference = self.stride - other.stride
        return difference != 0 and is_nonnegative(difference)
