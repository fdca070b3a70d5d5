"""Choices between values: by a condition, or by bounds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.errors import DTypeError
from weft.ir.types import DType, boolean
from weft.ops.base import op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import ANY_KIND, NUMBERS, Pointwise
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import SHAPES, Input, Sample

Bound = float | int | None


def _conditional(*shapes: tuple[int, ...]) -> Sample:
    first, *rest = shapes
    inputs = (Input(first, dtype=boolean), *(Input(shape) for shape in rest))
    return Sample(inputs, dtypes=(*NUMBERS, boolean))


@op(
    "where",
    onnx="Where",
    stablehlo="select",
    samples=(
        *(_conditional(shape, shape, shape) for shape in SHAPES),
        _conditional((3, 1), (3, 5), ()),
        _conditional((2, 3, 4), (4,), (3, 1)),
        _conditional((), (3,), (3,)),
    ),
)
class Where(Pointwise):
    """The second operand where the first is true, else the third."""

    KINDS: ClassVar[tuple[str, ...]] = ANY_KIND

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        condition, *values = dtypes
        if condition != boolean:
            raise DTypeError(f"where takes a boolean condition, got {condition}", hint="compare with 0 first")
        return super().result(values[0], *values, **params)

    @staticmethod
    def reference(condition: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
        return np.where(condition, yes, no)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (condition, _, _) = grads, operands
        zero = b.full_like(g, 0)
        return None, b.where(condition, g, zero), b.where(condition, zero, g)

    @staticmethod
    def tile(body: Body, condition: Value, yes: Value, no: Value) -> Value:
        return body.where(condition, yes, no)


@op(
    "clamp",
    samples=[
        Sample((Input(shape),), {"low": low, "high": high}, NUMBERS)
        for low, high in [(-1, 2), (0, None), (None, 1), (2, 1)]
        for shape in SHAPES
    ],
)
class Clamp(Pointwise):
    """The operand kept between two numbers, either of which may be None; NaN stays, and `high` wins over `low`."""

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        dtype = super().result(*dtypes, **params)
        for bound in (params["low"], params["high"]):
            if bound is not None and dtype.is_integer and not holds(dtype, bound):
                raise DTypeError(f"clamp of {dtype} to {bound}", hint="the bounds have to be numbers of the type")
        return dtype

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, low: Bound, high: Bound) -> np.ndarray:
        raised = x if low is None else np.maximum(x, x.dtype.type(low))
        return raised if high is None else np.minimum(raised, x.dtype.type(high))

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, low: Bound, high: Bound) -> Gradients:
        (g,), (x,) = grads, operands
        zero = b.full_like(x, 0)
        if low is not None:
            g = b.where(b.ge(x, b.full_like(x, low)), g, zero)
        if high is not None:
            g = b.where(b.le(x, b.full_like(x, high)), g, zero)
        return (g,)

    @staticmethod
    def tile(body: Body, x: Value, low: Bound, high: Bound) -> Value:
        raised = x if low is None else body.math("max", x, body.constant(low, x.dtype))
        return raised if high is None else body.math("min", raised, body.constant(high, x.dtype))


def holds(dtype: DType, number: float | int) -> bool:
    """Whether an integer type has this number."""
    bits = dtype.bits - (dtype.kind == "int")
    low = 0 if dtype.kind == "uint" else -(1 << bits)
    return isinstance(number, int) and low <= number < 1 << bits


def _between(*shapes: tuple[int, ...]) -> Sample:
    x, low, high = shapes
    return Sample((Input(x), Input(low, -3, 0), Input(high, 0, 3)), dtypes=NUMBERS)


@op(
    "clamp_tensor",
    samples=(
        *(_between(shape, shape, shape) for shape in SHAPES),
        _between((3, 5), (5,), ()),
        _between((4,), (2, 1), (3, 1, 1)),
    ),
)
class ClampTensor(Pointwise):
    """The first operand kept between the second and the third; NaN in any of them stays, and the third wins."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(x, low), high)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, low, high) = grads, operands
        zero = b.full_like(x, 0)
        inside = b.logical_and(b.ge(x, low), b.le(x, high))
        below = b.logical_and(b.lt(x, low), b.lt(low, high))
        above = b.logical_or(b.gt(x, high), b.lt(high, low))
        return b.where(inside, g, zero), b.where(below, g, zero), b.where(above, g, zero)

    @staticmethod
    def tile(body: Body, x: Value, low: Value, high: Value) -> Value:
        return body.math("min", body.math("max", x, low), high)
