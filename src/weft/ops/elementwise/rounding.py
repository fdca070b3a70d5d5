"""Rounding to whole numbers, and the sign and the neighbours of a float."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from weft.ops.base import Precision, op
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
