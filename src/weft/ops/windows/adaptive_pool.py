"""Adaptive pooling: windows of nearly equal size that cover the last dimensions, as many as the result is to have.

Window i of n over a dimension of size s goes from floor(i·s / n) to ceil((i + 1)·s / n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size, ceildiv, floordiv, mod, product
from weft.ir.types import DType, Tensor, boolean, contiguous_strides, i64
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import NARROW, rounded_once
from weft.ops.reduce import least
from weft.ops.rules import Gradients, Values
from weft.ops.samples import Input, Sample
from weft.ops.windows.pool import max_unpool

Sizes = tuple[Size, ...]

_SAMPLES = (
    Sample((Input((2, 7)),), {"shape": (3,)}, NUMBERS),
    Sample((Input((2, 3, 6, 5)),), {"shape": (3, 1)}, NUMBERS),
    Sample((Input((3, 4, 3)),), {"shape": (6, 7)}, NUMBERS),
    Sample((Input((2, 5, 4, 3)),), {"shape": (2, 3, 3)}, NUMBERS),
)


class AdaptivePool(Reduction):
    """A reduction over `shape` windows of nearly equal size."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape: Sizes = params["shape"]
        lead = x.rank - len(shape)
        if x.dtype == boolean:
            raise DTypeError(f"{cls.name} takes numbers, got {x}")
        if lead < 0 or 0 in shape or 0 in x.shape[lead:]:
            raise ShapeError(f"{cls.name}: {x} cannot be pooled to {shape}")
        return Tensor(cls.result(x.dtype), (*x.shape[:lead], *shape))

    @classmethod
    def result(cls, dtype: DType) -> DType:
        """The element type of the result."""
        return dtype

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], shape: Sizes) -> SSAValue:
        return b.emit(cls.name.removeprefix("graph."), operands[0], shape=shape)

    @staticmethod
    def ranges(x: Tensor, shape: Sizes) -> Sizes:
        return tuple(_widest(size, count) for size, count in zip(x.shape[x.rank - len(shape) :], shape, strict=True))


def _widest(size: Size, count: Size) -> Size:
    """The size of the largest of `count` windows, or a bound on it."""
    if mod(size, count) == 0:
        return floordiv(size, count)
    return 1 if mod(count, size) == 0 else ceildiv(size, count) + 1


def _element(
    body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, shape: Sizes, other: float | int
) -> Value:
    """The element `over` of the window `index`, or `other` beyond its end."""
    lead = len(index) - len(over)
    place: list[Size] = []
    mask: Value | None = None
    for i, k, size, count in zip(index[lead:], over, x.tensor.shape[lead:], shape, strict=True):
        start = floordiv(i * size, count)
        place.append(start + k)
        if mod(size, count) != 0 and mod(count, size) != 0:
            mask = body.both(mask, body.inside(k, ceildiv((i + 1) * size, count) - start))
    return body.at(x, [*index[:lead], *place], mask, other)


def _windows(x: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[range, ...]]]:
    """The index of each window, and the places of its elements in each of the last dimensions."""
    sizes = x.shape[x.ndim - len(shape) :]
    for index in np.ndindex(*shape):
        spans = zip(index, sizes, shape, strict=True)
        yield index, tuple(range(i * size // count, -(-(i + 1) * size // count)) for i, size, count in spans)


@op("adaptive_sum_pool", samples=_SAMPLES)
class AdaptiveSumPool(AdaptivePool):
    """The sums of windows of nearly equal size that cover the last dimensions, `shape` of them."""

    KIND: ClassVar[str] = "sum"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        for d, count in enumerate(shape, x.ndim - len(shape)):
            size = x.shape[d]
            pieces = [
                np.sum(np.take(x, range(i * size // count, -(-(i + 1) * size // count)), d), d, x.dtype, keepdims=True)
                for i in range(count)
            ]
            x = np.concatenate(pieces, d)
        return x

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, shape: Sizes) -> Gradients:
        # The windows that an element belongs to are those of pooling the other way.
        return (b.adaptive_sum_pool(grads[0], shape=b.tensor(operands[0]).shape[-len(shape) :]),)

    @staticmethod
    def element(body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, shape: Sizes) -> Value:
        return _element(body, index, over, x, shape, 0)


@op("adaptive_max_pool", samples=_SAMPLES)
class AdaptiveMaxPool(AdaptivePool):
    """The greatest elements of windows of nearly equal size, `shape` of them; NaN if one is there."""

    KIND: ClassVar[str] = "max"

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        lead = x.ndim - len(shape)
        wide: np.ndarray = x.astype(np.float32) if x.dtype in NARROW else x
        result = np.empty((*x.shape[:lead], *shape), x.dtype)
        for index, places in _windows(x, shape):
            chosen = wide[(..., *np.ix_(*places))]
            result[(..., *index)] = np.max(chosen, axis=tuple(range(lead, x.ndim)))
        return result

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, shape: Sizes) -> Gradients:
        (x,) = operands
        places = b.adaptive_max_pool_indices(x, shape=shape)
        return (max_unpool(b, grads[0], places, b.tensor(x).shape, len(shape)),)

    @staticmethod
    def element(body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, shape: Sizes) -> Value:
        return _element(body, index, over, x, shape, least(x.tensor.dtype))


@op("adaptive_max_pool_indices", samples=_SAMPLES)
class AdaptiveMaxPoolIndices(AdaptivePool):
    """Where the greatest element of each such window stands: its row-major position in the pooled dimensions.

    The first of equal elements counts; a NaN is greatest.
    """

    KIND: ClassVar[str] = "argmax"

    @classmethod
    def result(cls, dtype: DType) -> DType:
        return i64

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        lead = x.ndim - len(shape)
        wide: np.ndarray = x.astype(np.float32) if x.dtype in NARROW else x
        numbers = np.arange(int(np.prod(x.shape[lead:]))).reshape(x.shape[lead:])
        result = np.empty((*x.shape[:lead], *shape), np.int64)
        for index, places in _windows(x, shape):
            chosen = wide[(..., *np.ix_(*places))].reshape(*x.shape[:lead], -1)
            result[(..., *index)] = numbers[np.ix_(*places)].ravel()[np.argmax(chosen, axis=-1)]
        return result

    @staticmethod
    def element(body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, shape: Sizes) -> Value:
        # What lies beyond a window's end comes after its first element: among equals it is not chosen.
        return _element(body, index, over, x, shape, least(x.tensor.dtype))

    @staticmethod
    def finish(body: Body, value: Value, index: Sequence[Size], x: Operand, shape: Sizes) -> Value:
        lead = len(index) - len(shape)
        window = AdaptivePool.ranges(x.tensor, shape)
        tap, steps = body.index(value, product(window)), contiguous_strides(window)
        position: Size = 0
        for i, size, count, extent, step in zip(index[lead:], x.tensor.shape[lead:], shape, window, steps, strict=True):
            start = floordiv(i * size, count)
            position = position * size + start + mod(floordiv(tap, step), extent)
        return body.position(position, i64)
