"""What the gradient and batching rules of ops are written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, i64
from weft.ops.graph import GraphBuilder

Values: TypeAlias = Sequence[SSAValue]
Gradients: TypeAlias = tuple[SSAValue | None, ...]


def zeros(b: GraphBuilder, like: SSAValue, shape: Sequence[Size] | None = None) -> SSAValue:
    """A tensor of zeros of the operand's type, in its shape or another."""
    tensor = b.tensor(like)
    return b.full(value=0, shape=tensor.shape if shape is None else tuple(shape), dtype=tensor.dtype)


def size_value(b: GraphBuilder, size: Size, dtype: DType) -> SSAValue:
    """A size as a scalar tensor."""
    if isinstance(size, int):
        return b.full(value=size, shape=(), dtype=dtype)
    return b.reshape(b.iota(shape=(1,), dim=0, dtype=dtype, start=size), shape=())


def iota(b: GraphBuilder, size: Size, dtype: DType = i64) -> SSAValue:
    """0, 1, … size - 1."""
    return b.iota(shape=(size,), dim=0, dtype=dtype)


def flip(b: GraphBuilder, x: SSAValue, *dims: int) -> SSAValue:
    """The elements along `dims` in reverse order."""
    shape = b.tensor(x).shape
    starts = tuple(size - 1 if d in dims else 0 for d, size in enumerate(shape))
    return b.slice(x, starts=starts, shape=shape, steps=tuple(-1 if d in dims else 1 for d in range(len(shape))))


def move_dim(b: GraphBuilder, x: SSAValue, source: int, target: int) -> SSAValue:
    """Dimension `source` placed at `target`, the others in order."""
    if source == target:
        return x
    dims = [d for d in range(b.tensor(x).rank) if d != source]
    dims.insert(target, source)
    return b.permute(x, dims=tuple(dims))


def batch_size(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> Size:
    """The size of the batch dimension, which all batched operands have in front."""
    return next(b.tensor(x).shape[0] for x, is_batched in zip(operands, batched, strict=True) if is_batched)


def with_batch(b: GraphBuilder, x: SSAValue, is_batched: bool, size: Size) -> SSAValue:
    """The operand with the batch dimension in front, broadcast if it lacks it."""
    return x if is_batched else b.broadcast(x, shape=(size, *b.tensor(x).shape))


def all_batched(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> list[SSAValue]:
    """The operands with the batch dimension in front, those that lack it broadcast."""
    size = batch_size(b, operands, batched)
    return [with_batch(b, x, is_batched, size) for x, is_batched in zip(operands, batched, strict=True)]


def align_batched(b: GraphBuilder, x: SSAValue, rank: int) -> SSAValue:
    """A batched operand with dimensions of size 1 after the batch, so that without the batch it has `rank` of them."""
    size, *shape = b.tensor(x).shape
    if len(shape) == rank:
        return x
    return b.reshape(x, shape=(size, *(1 for _ in range(rank - len(shape))), *shape))
