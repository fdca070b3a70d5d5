"""Reductions over dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size
from weft.ir.types import DType, Tensor, boolean, dtype_of_numpy, i64
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import NARROW, rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import Input, Sample

_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((7,), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0,)),
    ((2, 3, 33), (0, 2)),
    ((4, 1, 6), (1,)),
    ((0, 4), (1,)),
    ((), ()),
)
_EMPTY: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (((3, 0), (1,)), ((4, 4), ()))


def reduction_samples(
    *cases: tuple[tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[DType, ...] = NUMBERS,
    low: float = -4,
    high: float = 4,
) -> tuple[Sample, ...]:
    """The usual shapes and dimensions, and the ones given."""
    return tuple(
        Sample((Input(shape, low, high),), {"dims": dims, "keep": keep}, dtypes)
        for shape, dims in (*_CASES, *cases)
        for keep in (False, True)
    )


def least(dtype: DType) -> float | int:
    """The least value of a type, -∞ for floats."""
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


def greatest(dtype: DType) -> float | int:
    """The greatest value of a type, ∞ for floats."""
    if dtype.is_float:
        return float("inf")
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1


class DimensionReduction(Reduction):
    """A reduction over the dimensions `dims` (in ascending order), which stay with size 1 if `keep`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        dims: tuple[int, ...] = params["dims"]
        if list(dims) != sorted(set(dims)) or any(not 0 <= d < x.rank for d in dims):
            raise ShapeError(f"{cls.name}: {dims} are not ascending dimensions of {x}")
        if params["keep"]:
            return Tensor(cls.result(x.dtype), tuple(1 if d in dims else size for d, size in enumerate(x.shape)))
        return Tensor(cls.result(x.dtype), tuple(size for d, size in enumerate(x.shape) if d not in dims))

    @classmethod
    def result(cls, dtype: DType) -> DType:
        """The element type of the result."""
        return dtype

    @staticmethod
    def ranges(x: Tensor, dims: tuple[int, ...], keep: bool) -> tuple[Size, ...]:
        return tuple(x.shape[d] for d in dims)

    @staticmethod
    def element(
        body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, dims: tuple[int, ...], keep: bool
    ) -> Value:
        kept = iter([size for d, size in enumerate(index) if d not in dims] if keep else index)
        reduced = dict(zip(dims, over, strict=True))
        return body.at(x, [reduced[d] if d in reduced else next(kept) for d in range(x.tensor.rank)])

    @classmethod
    def batch(
        cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], dims: tuple[int, ...], keep: bool
    ) -> SSAValue:
        return b.emit(cls.name.removeprefix("graph."), operands[0], dims=tuple(d + 1 for d in dims), keep=keep)


def spread(b: GraphBuilder, value: SSAValue, like: SSAValue, dims: tuple[int, ...]) -> SSAValue:
    """A reduction's result (or its gradient) with the reduced dimensions back, of size 1."""
    shape = b.tensor(like).shape
    return b.reshape(value, shape=tuple(1 if d in dims else size for d, size in enumerate(shape)))


@op("sum", onnx="ReduceSum", stablehlo="reduce", samples=reduction_samples(*_EMPTY))
class Sum(DimensionReduction):
    """Sum over dimensions; narrow floats are accumulated in f32."""

    KIND: ClassVar[str] = "sum"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.sum(x, axis=dims, keepdims=keep, dtype=x.dtype))

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, dims: tuple[int, ...], keep: bool
    ) -> Gradients:
        (x,) = operands
        return (b.broadcast(spread(b, grads[0], x, dims), shape=b.tensor(x).shape),)


@op("prod", onnx="ReduceProd", stablehlo="reduce", samples=reduction_samples(*_EMPTY, low=-2, high=2))
class Prod(DimensionReduction):
    """Product over dimensions; narrow floats are accumulated in f32."""

    KIND: ClassVar[str] = "prod"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.prod(x, axis=dims, keepdims=keep, dtype=x.dtype))

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, dims: tuple[int, ...], keep: bool
    ) -> Gradients:
        (x,) = operands
        # The product of the others is that of the nonzero ones times that of other zeros. The latter is written by sums
        # over the zeros, so that derivatives of this gradient are right, too: the third, where two others are zero.
        zero, none, one = b.eq(x, b.full_like(x, 0)), b.full_like(x, 0), b.full_like(x, 1)
        nonzero = b.where(zero, one, x)
        others = b.div(b.prod(nonzero, dims=dims, keep=True), nonzero)
        weight, zeros = b.cast(zero, dtype=b.tensor(x).dtype), b.where(zero, x, none)
        count = b.sub(b.sum(weight, dims=dims, keep=True), weight)
        single = b.sub(b.sum(zeros, dims=dims, keep=True), zeros)
        squares = b.mul(zeros, zeros)
        pair = b.sub(b.mul(single, single), b.sub(b.sum(squares, dims=dims, keep=True), squares))
        several = b.where(b.eq(count, b.full_like(x, 2)), b.mul(pair, b.full_like(x, 0.5)), none)
        product = b.where(b.eq(count, none), one, b.where(b.eq(count, one), single, several))
        alone = b.mul(product, others)
        return (b.mul(spread(b, grads[0], x, dims), alone),)


class Extremum(DimensionReduction):
    """A greatest or least element; a NaN among the elements is the result. The gradient is shared by equal elements."""

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, dims: tuple[int, ...], keep: bool
    ) -> Gradients:
        (x,) = operands
        chosen = b.cast(b.eq(x, spread(b, results[0], x, dims)), dtype=b.tensor(x).dtype)
        share = b.div(spread(b, grads[0], x, dims), b.sum(chosen, dims=dims, keep=True))
        return (b.mul(chosen, share),)


@op("max", onnx="ReduceMax", stablehlo="reduce", samples=reduction_samples(*_EMPTY))
class Max(Extremum):
    """The greatest element over dimensions."""

    KIND: ClassVar[str] = "max"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.max(x, axis=dims, keepdims=keep, initial=least(dtype_of_numpy(x.dtype))))


@op("min", onnx="ReduceMin", stablehlo="reduce", samples=reduction_samples(*_EMPTY))
class Min(Extremum):
    """The least element over dimensions."""

    KIND: ClassVar[str] = "min"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.min(x, axis=dims, keepdims=keep, initial=greatest(dtype_of_numpy(x.dtype))))


class BooleanReduction(DimensionReduction):
    """A reduction of booleans."""

    @classmethod
    def result(cls, dtype: DType) -> DType:
        if dtype != boolean:
            raise DTypeError(f"{cls.name} takes booleans, got {dtype}", hint="compare with 0 first")
        return boolean


@op("any", stablehlo="reduce", samples=reduction_samples(*_EMPTY, dtypes=(boolean,)))
class Any_(BooleanReduction):
    """Whether any element over dimensions is true."""

    KIND: ClassVar[str] = "any"

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.any(x, axis=dims, keepdims=keep))


@op("all", stablehlo="reduce", samples=reduction_samples(*_EMPTY, dtypes=(boolean,)))
class All(BooleanReduction):
    """Whether all elements over dimensions are true."""

    KIND: ClassVar[str] = "all"

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return np.asarray(np.all(x, axis=dims, keepdims=keep))


class IndexReduction(DimensionReduction):
    """Where the greatest or least element stands: its row-major position within `dims`, the first of equals.

    A NaN counts as the element sought.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        result = super().infer(*tensors, **params)
        if 0 in cls.ranges(tensors[0], **params):
            raise ShapeError(f"{cls.name}: no elements to choose from in dimensions {params['dims']} of {tensors[0]}")
        return result

    @classmethod
    def result(cls, dtype: DType) -> DType:
        return i64


def flattened(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """`x` with the dimensions `dims` joined at the end, and narrow floats made f32, which NumPy can order."""
    rest = [d for d in range(x.ndim) if d not in dims]
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64))
    joined = np.transpose(x, (*rest, *dims)).reshape(*(x.shape[d] for d in rest), count)
    return joined.astype(np.float32) if x.dtype in NARROW else joined


def _kept(value: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.expand_dims(value, dims) if keep else np.asarray(value)


@op("argmax", samples=reduction_samples(((4, 4), ()), dtypes=NUMBERS))
class ArgMax(IndexReduction):
    """The position of the greatest element over dimensions."""

    KIND: ClassVar[str] = "argmax"

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return _kept(np.argmax(flattened(x, dims), axis=-1).astype(np.int64), dims, keep)


@op("argmin", samples=reduction_samples(((4, 4), ()), dtypes=NUMBERS))
class ArgMin(IndexReduction):
    """The position of the least element over dimensions."""

    KIND: ClassVar[str] = "argmin"

    @staticmethod
    def reference(x: np.ndarray, dims: tuple[int, ...], keep: bool) -> np.ndarray:
        return _kept(np.argmin(flattened(x, dims), axis=-1).astype(np.int64), dims, keep)
