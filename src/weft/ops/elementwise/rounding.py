"""Rounding to whole numbers, and the sign and the neighbours of a float."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from weft.ir.types import i8, i16
from weft.ops.base import Precision, op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import FLOATS, FloatFunction
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import binary, unary


class Rounding(FloatFunction):
    """A function that is constant but for its jumps: no gradient flows."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (None,)


@op("floor", aten="floor.default", onnx="Floor", stablehlo="floor", samples=unary(dtypes=FLOATS))
class Floor(Rounding):
    """The greatest whole number that is not above."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.floor(x)


@op("ceil", aten="ceil.default", onnx="Ceil", stablehlo="ceil", samples=unary(dtypes=FLOATS))
class Ceil(Rounding):
    """The least whole number that is not below."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.ceil(x)


@op("trunc", aten="trunc.default", samples=unary(dtypes=FLOATS))
class Trunc(Rounding):
    """The whole number towards zero."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.trunc(x)


@op("round", aten="round.default", onnx="Round", stablehlo="round_nearest_even", samples=unary(dtypes=FLOATS))
class Round(Rounding):
    """The nearest whole number; halves go to the even one."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.rint(x)


@op("copysign", samples=binary(dtypes=FLOATS))
class CopySign(FloatFunction):
    """The magnitude of the first operand with the sign of the second, that of a zero too."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.copysign(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, _), (y,) = grads, operands, results
        zero, one = b.full_like(y, 0), b.full_like(y, 1)
        at_zero = b.eq(x, zero)
        return b.mul(g, b.where(at_zero, zero, b.div(y, b.where(at_zero, one, x)))), None


@op("nextafter", samples=binary(dtypes=FLOATS))
class NextAfter(FloatFunction):
    """The neighbour of the first operand, in its own type, on the way to the second."""

    NO_RULE: ClassVar[Mapping[str, str]] = {"vjp": "its steps are of rounding, and torch has no derivative of it"}

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.nextafter(a, b)

    @classmethod
    def tile(cls, body: Body, *values: Value) -> Value:
        """Of narrow floats by their bits, which count their magnitude up: kernels compute with them as f32."""
        dtype = values[0].dtype
        if dtype.bits >= 32:
            return super().tile(body, *values)
        x, y = (body.rounded(value, dtype) for value in values)
        integers = i16 if dtype.bits == 16 else i8
        bits, target = body.bitcast(x, integers), body.bitcast(y, integers)
        zero, one = body.constant(0, dtype), body.constant(1, integers)
        away = body.math("xor", body.math("lt", x, y), body.math("lt", x, zero))
        moved = body.where(away, body.math("add", bits, one), body.math("sub", bits, one))
        sign = body.math("and", target, body.constant(-(1 << (dtype.bits - 1)), integers))
        moved = body.where(body.math("eq", x, zero), body.math("or", sign, one), moved)
        found = body.where(body.math("eq", x, y), y, body.bitcast(moved, dtype))
        missing = body.math("or", body.math("isnan", x), body.math("isnan", y))
        return body.where(missing, body.constant(math.nan, dtype), found)
