"""Scans: every element combined with those before it along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError
from weft.ir.types import DType, Tensor, i64
from weft.ops.base import Scan, op
from weft.ops.control import loop
from weft.ops.elementwise.pointwise import FLOATS, NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.indexing.index import check_dim
from weft.ops.numerics import NARROW, rounded_once
from weft.ops.rules import Gradients, Values, flip, move_dim, zeros
from weft.ops.samples import Input, Sample


def _samples(dtypes: tuple[DType, ...], low: float = -4, high: float = 4) -> tuple[Sample, ...]:
    cases: tuple[tuple[tuple[int, ...], int], ...] = (
        ((7,), 0),
        ((1,), 0),
        ((3, 5), 0),
        ((2, 33, 3), 1),
        ((3, 17), 1),
        ((3, 0), 1),
    )
    return tuple(Sample((Input(shape, low, high),), {"dim": dim}, dtypes) for shape, dim in cases)


class DimensionScan(Scan):
    """A scan along `dim`, which the operand has (its rank is at least 1)."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor | tuple[Tensor, ...]:
        (x,) = tensors
        check_dim(cls.name, x, params["dim"])
        return x

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int) -> Any:
        return b.emit(cls.name.removeprefix("graph."), operands[0], dim=dim + 1)


def reverse_cumsum(b: GraphBuilder, x: SSAValue, dim: int) -> SSAValue:
    """Every element added to those after it."""
    return flip(b, b.cumsum(flip(b, x, dim), dim=dim), dim)


@op("cumsum", onnx="CumSum", samples=_samples(NUMBERS))
class CumSum(DimensionScan):
    """Running sums; narrow floats are accumulated in f32."""

    KIND: ClassVar[str] = "sum"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dim: int) -> np.ndarray:
        return np.cumsum(x, axis=dim, dtype=x.dtype)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        return (reverse_cumsum(b, grads[0], dim),)


@op("cumprod", samples=_samples(NUMBERS, -2, 2))
class CumProd(DimensionScan):
    """Running products; narrow floats are accumulated in f32."""

    KIND: ClassVar[str] = "prod"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dim: int) -> np.ndarray:
        return np.cumprod(x, axis=dim, dtype=x.dtype)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        (g,), (x,), (y,) = grads, operands, results
        # Before the first zero a product of the others is y / x. The zero itself has the products that it spoiled;
        # after it all of them are zero, as multiples of the first one: so second derivatives are right, too.
        zero, one = b.full_like(x, 0), b.full_like(x, 1)
        vanishes = b.eq(x, zero)
        nonzero = b.where(vanishes, one, x)
        seen = b.cumsum(b.cast(vanishes, dtype=i64), dim=dim)
        first, second = (b.logical_and(vanishes, b.eq(seen, b.full_like(seen, n))) for n in (1, 2))
        spoiled = b.where(first, one, x)
        before = b.div(reverse_cumsum(b, b.mul(g, y), dim), nonzero)
        at_first = reverse_cumsum(b, b.mul(g, b.cumprod(spoiled, dim=dim)), dim)
        at_second = reverse_cumsum(b, b.mul(g, b.cumprod(b.where(second, one, spoiled), dim=dim)), dim)
        others = b.where(vanishes, b.where(second, at_second, zero), b.div(at_first, nonzero))
        after = b.mul(b.sum(b.where(first, x, zero), dims=(dim,), keep=True), others)
        return (b.where(b.eq(seen, b.full_like(seen, 0)), before, b.where(first, at_first, after)),)


class ExtremumScan(DimensionScan):
    """Running extrema and where they stand: of equal elements the last; the first NaN stays until the next one."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, ...]:
        super().infer(*tensors, **params)
        return tensors[0], Tensor(i64, tensors[0].shape)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        return (b.scatter(zeros(b, operands[0]), results[1], grads[0], dim=dim, kind="add"),)


def _running(x: np.ndarray, dim: int, better: np.ufunc) -> tuple[np.ndarray, np.ndarray]:
    lines = np.moveaxis(x.astype(np.float32) if x.dtype in NARROW else x, dim, 0)
    places = np.zeros(lines.shape, np.int64)
    for i in range(1, len(lines)):
        best = np.take_along_axis(lines, places[i - 1 : i], 0)[0]
        # Only a NaN differs from itself, and nothing is better than one but the next.
        wins = (lines[i] != lines[i]) | better(lines[i], best)
        places[i] = np.where(wins, i, places[i - 1])
    positions = np.moveaxis(places, 0, dim)
    return np.take_along_axis(x, positions, dim), positions


@op("cummax", samples=_samples(NUMBERS))
class CumMax(ExtremumScan):
    """Running maxima, and their positions."""

    KIND: ClassVar[str] = "max"

    @staticmethod
    def reference(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        return _running(x, dim, np.greater_equal)


@op("cummin", samples=_samples(NUMBERS))
class CumMin(ExtremumScan):
    """Running minima, and their positions."""

    KIND: ClassVar[str] = "min"

    @staticmethod
    def reference(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        return _running(x, dim, np.less_equal)


@op("logcumsumexp", samples=_samples(FLOATS))
class LogCumSumExp(DimensionScan):
    """The logarithms of the running sums of exponentials, without leaving the range of the type."""

    KIND: ClassVar[str] = "logaddexp"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor | tuple[Tensor, ...]:
        if not tensors[0].dtype.is_float:
            raise DTypeError(f"logcumsumexp takes floats, got {tensors[0]}", hint="insert a cast")
        return super().infer(*tensors, **params)

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, dim: int) -> np.ndarray:
        return np.logaddexp.accumulate(x, axis=dim, dtype=x.dtype)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        (g,), (x,), (y,) = grads, operands, results
        # s[i] = Σ g[j]·exp(y[i] - y[j]) over j ≥ i, a turn for each i; factors are at most 1. This is linear in
        # g also where that is 0, so that it can be differentiated again.
        front = [move_dim(b, each, dim, 0) for each in (g, x, y)]
        (size, *rest) = b.tensor(front[0]).shape
        start = zeros(b, g, rest)

        def turn(b: GraphBuilder, index: SSAValue, states: Values, slices: Values) -> tuple[Values, Values]:
            (after, above), (gradient, given, result) = states, slices
            found = b.add(gradient, b.mul(after, b.exp(_difference(b, result, above))))
            return [found, result], [b.mul(found, b.exp(_difference(b, given, result)))]

        above = b.full(value=float("inf"), shape=tuple(rest), dtype=b.tensor(g).dtype)
        _, (stack,) = loop(b, turn, [start, above], front, trip_count=size, reverse=True)
        return (move_dim(b, stack, 0, dim),)

    @staticmethod
    def jvp(b: GraphBuilder, tangents: Values, operands: Values, results: Values, dim: int) -> Gradients:
        front = [move_dim(b, each, dim, 0) for each in (tangents[0], operands[0], results[0])]
        (size, *rest) = b.tensor(front[0]).shape

        def turn(b: GraphBuilder, index: SSAValue, states: Values, slices: Values) -> tuple[Values, Values]:
            (before, below), (tangent, given, result) = states, slices
            kept = b.mul(before, b.exp(_difference(b, below, result)))
            found = b.add(kept, b.mul(tangent, b.exp(_difference(b, given, result))))
            return [found, result], [found]

        below = b.full(value=float("-inf"), shape=tuple(rest), dtype=b.tensor(tangents[0]).dtype)
        _, (stack,) = loop(b, turn, [zeros(b, tangents[0], rest), below], front, trip_count=size)
        return (move_dim(b, stack, 0, dim),)


def _difference(b: GraphBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x - y, at most 0; of equal infinities 0."""
    return b.where(b.eq(x, y), b.full_like(x, 0), b.sub(x, y))
