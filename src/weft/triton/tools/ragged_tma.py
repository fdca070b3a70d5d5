"""Descriptors of tensors whose rows are batches of different lengths: a block that leaves its batch is cut off there.

create_ragged_descriptor(x, [BM, BN])  ──►  load_ragged(desc, first row, rows, [i, j])   rows past the batch are zero
                                            store_ragged(desc, first row, rows, [i, j], block)   and are not written
"""

# Kernels' functions have no types that Python knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.triton.language as tl
from weft.frontends.triton.runtime.host_descriptor import DescriptorError, TensorDescriptor
from weft.frontends.triton.runtime.jit import jit

_MOST_ROWS = 1 << 30


def create_ragged_descriptor(T: Any, block_shape: Sequence[int], ragged_dim: int = 0) -> TensorDescriptor:
    """A descriptor of a tensor of two or three axes, along one of which (not the last) its batches lie."""
    rank = len(T.shape)
    axis = ragged_dim + rank if ragged_dim < 0 else ragged_dim
    if not 2 <= rank <= 3 or len(block_shape) != rank:
        raise DescriptorError(f"a ragged descriptor has two or three axes, and as many sides of a block, not {rank}")
    if not 0 <= axis < rank - 1:
        raise DescriptorError(f"axis {ragged_dim} cannot be ragged", hint="any but the last can")
    if T.shape[axis] > _MOST_ROWS:
        raise DescriptorError(f"a ragged axis has at most 2**30 rows, not {T.shape[axis]}")
    return TensorDescriptor(T, list(T.shape), [T.stride(i) for i in range(rank)], list(block_shape))


@jit
def _places(desc, batch_offset, batch_size, coords, ragged_dim: tl.constexpr):
    """The pointers of a block, and which of them lie in the batch and in the tensor."""
    rank: tl.constexpr = len(desc.block_shape)
    pointers = tl.broadcast_to(desc.base, desc.block_shape)
    inside = tl.full(desc.block_shape, 1, tl.int1)
    for axis in tl.static_range(rank):
        place = coords[axis] + tl.arange(0, desc.block_shape[axis])
        if axis == ragged_dim:
            here = (place >= 0) & (place < batch_size)
            place = place + batch_offset
            here = here & (place >= 0) & (place < desc.shape[axis])
        else:
            here = (place >= 0) & (place < desc.shape[axis])
        for other in tl.static_range(rank):
            if other != axis:
                place = tl.expand_dims(place, other)
                here = tl.expand_dims(here, other)
        pointers += place.to(tl.int64) * desc.strides[axis]
        inside &= here
    return pointers, inside


@jit
def load_ragged(TMA, batch_offset, batch_size, coords, ragged_dim: tl.constexpr = 0):
    """The block at `coords` of a batch, which begins at row `batch_offset`; zero where it leaves it."""
    pointers, inside = _places(TMA, batch_offset, batch_size, coords, ragged_dim)
    return tl.load(pointers, mask=inside, other=0)


@jit
def store_ragged(TMA, batch_offset, batch_size, coords, data, ragged_dim: tl.constexpr = 0):
    """Write a block at `coords` of a batch; what leaves it is dropped."""
    pointers, inside = _places(TMA, batch_offset, batch_size, coords, ragged_dim)
    tl.store(pointers, data.to(TMA.dtype), mask=inside)


@jit
def atomic_add_ragged(TMA, batch_offset, batch_size, coords, data, ragged_dim: tl.constexpr = 0):
    """Add a block at `coords` of a batch; what leaves it is dropped."""
    pointers, inside = _places(TMA, batch_offset, batch_size, coords, ragged_dim)
    tl.atomic_add(pointers, data.to(TMA.dtype), mask=inside)
