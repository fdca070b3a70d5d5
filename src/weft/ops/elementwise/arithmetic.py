"""Elementwise arithmetic on numbers. Integers wrap around; dividing one by zero gives some value."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from weft.ir.types import u8
from weft.ops import numerics
from weft.ops.base import Precision, op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import (
    ANY_KIND,
    FLOATS,
    INTEGERS,
    NUMBERS,
    FloatFunction,
    Pointwise,
    Primitive,
    in_f32,
)
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import Input, Sample, binary, unary


def quotients() -> tuple[Sample, ...]:
    """Two operands with divisors of both signs, and none that is zero."""
    positive = binary(low=-20, high=20, low2=1, dtypes=(*NUMBERS, u8))
    return *positive, Sample((Input((7, 3), -20, 20), Input((3,), -6, -1)), dtypes=NUMBERS)


@op("add", onnx="Add", stablehlo="add", samples=binary(dtypes=(*NUMBERS, u8)))
class Add(Primitive):
    """Sum."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return grads[0], grads[0]


@op("sub", onnx="Sub", stablehlo="subtract", samples=binary(dtypes=(*NUMBERS, u8)))
class Sub(Primitive):
    """Difference."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.subtract(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return grads[0], b.neg(grads[0])


@op("mul", onnx="Mul", stablehlo="multiply", samples=binary(dtypes=(*NUMBERS, u8)))
class Mul(Primitive):
    """Product."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.multiply(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        return b.mul(g, y), b.mul(g, x)


@op("div", samples=binary(low2=0.5, dtypes=FLOATS))
class Div(FloatFunction):
    """Quotient of floats; `floordiv` and `truncdiv` divide integers."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.divide(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (_, y), (q,) = grads, operands, results
        share = b.div(g, y)
        return share, b.neg(b.mul(share, q))


@op("floordiv", samples=quotients())
class FloorDiv(Primitive):
    """The quotient rounded towards -∞."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.floor_divide(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return None, None


@op("truncdiv", samples=quotients())
class TruncDiv(Primitive):
    """The quotient rounded towards zero."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return numerics.truncdiv(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return None, None


@op("remainder", samples=quotients())
class Remainder(Primitive):
    """What `floordiv` leaves: it has the sign of the divisor."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.remainder(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        return g, b.neg(b.mul(g, b.floordiv(x, y)))


@op("fmod", stablehlo="remainder", samples=quotients())
class Fmod(Primitive):
    """What `truncdiv` leaves: it has the sign of the dividend."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.fmod(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        return g, b.neg(b.mul(g, b.truncdiv(x, y)))


@op(
    "pow",
    stablehlo="power",
    samples=(
        *binary(low=0.1, high=3, low2=-2, dtypes=FLOATS),
        *binary(low=-3, high=4, dtypes=INTEGERS),
    ),
)
class Pow(Primitive):
    """The first operand to the power of the second. An integer to a negative power is 1 / its power, towards zero."""

    AUTOCAST: ClassVar[Precision] = "wide"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return numerics.power(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y), (p,) = grads, operands, results
        zero, one = b.full_like(x, 0), b.full_like(x, 1)
        base = b.mul(y, b.pow(x, b.sub(y, one)))
        flat = b.logical_and(b.eq(x, zero), b.ge(y, zero))  # 0**y does not move with y, and log(0) is infinite
        # Factors are chosen, not products: of these, the derivative by the gradient would be 0 times infinity.
        return b.mul(g, b.where(b.eq(y, zero), zero, base)), b.mul(g, b.where(flat, zero, b.mul(p, b.log(x))))


@op("neg", aten=("neg.default", "_neg_view.default"), onnx="Neg", stablehlo="negate", samples=unary(dtypes=NUMBERS))
class Neg(Primitive):
    """The negative."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.negative(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.neg(grads[0]),)


@op("abs", aten="abs.default", onnx="Abs", stablehlo="abs", samples=unary(dtypes=NUMBERS))
class Abs(Primitive):
    """The magnitude."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.abs(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.mul(grads[0], b.sign(operands[0])),)


@op("sign", aten=("sign.default", "sgn.default"), onnx="Sign", samples=unary(dtypes=(*NUMBERS, u8)))
class Sign(Pointwise):
    """-1, 0 or 1 as the operand is negative, zero (or NaN) or positive."""

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        zero = x.dtype.type(0)
        return (x > zero).astype(x.dtype) - (x < zero).astype(x.dtype)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (None,)

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        zero = body.constant(0, x.dtype)
        positive, negative = body.math("gt", x, zero), body.math("lt", x, zero)
        return body.math("sub", body.cast(positive, x.dtype), body.cast(negative, x.dtype))


@op("reciprocal", aten="reciprocal.default", onnx="Reciprocal", samples=unary(low=0.5, dtypes=FLOATS))
class Reciprocal(Pointwise):
    """1 / x."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.reciprocal(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.neg(b.mul(g, b.mul(y, y))),)

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        return body.math("div", body.constant(1, x.dtype), x)


class Extremum(Primitive):
    """The greater or the lesser of two; operands may be booleans too."""

    KINDS: ClassVar[tuple[str, ...]] = ANY_KIND


@op("maximum", stablehlo="maximum", samples=binary(dtypes=(*NUMBERS, u8)))
class Maximum(Extremum):
    """The greater of two, NaN if either is. Equal operands share the gradient."""

    FUNCTION: ClassVar[str] = "max"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        zero = b.full_like(g, 0)
        share = b.where(b.eq(x, y), b.mul(g, b.full_like(g, 0.5)), g)
        return b.where(b.lt(x, y), zero, share), b.where(b.gt(x, y), zero, share)


@op("minimum", stablehlo="minimum", samples=binary(dtypes=(*NUMBERS, u8)))
class Minimum(Extremum):
    """The lesser of two, NaN if either is. Equal operands share the gradient."""

    FUNCTION: ClassVar[str] = "min"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.minimum(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        zero = b.full_like(g, 0)
        share = b.where(b.eq(x, y), b.mul(g, b.full_like(g, 0.5)), g)
        return b.where(b.gt(x, y), zero, share), b.where(b.lt(x, y), zero, share)


@op("fmax", samples=binary(dtypes=FLOATS))
class Fmax(FloatFunction):
    """The greater of two, the other one if one is NaN."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.fmax(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        zero = b.full_like(g, 0)
        first = b.logical_or(b.ge(x, y), b.isnan(y))
        return b.where(first, g, zero), b.where(first, zero, g)


@op("fmin", samples=binary(dtypes=FLOATS))
class Fmin(FloatFunction):
    """The lesser of two, the other one if one is NaN."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.fmin(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y) = grads, operands
        zero = b.full_like(g, 0)
        first = b.logical_or(b.le(x, y), b.isnan(y))
        return b.where(first, g, zero), b.where(first, zero, g)


@op("hypot", samples=binary(dtypes=FLOATS))
class Hypot(Pointwise):
    """√(a² + b²), where neither square overflows; infinite if an operand is, even when the other is NaN."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.hypot(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x, y), (length,) = grads, operands, results
        return b.mul(g, b.div(x, length)), b.mul(g, b.div(y, length))

    @staticmethod
    @in_f32
    def tile(body: Body, a: Value, b: Value) -> Value:
        one, zero = body.constant(1, a.dtype), body.constant(0, a.dtype)
        a, b = body.math("abs", a), body.math("abs", b)
        long, short = body.math("max", a, b), body.math("min", a, b)
        # The quotient of the sides is at most 1, but for 0 / 0 and ∞ / ∞, where the longer side is the answer.
        ratio = body.math("div", short, long)
        length = body.math("mul", long, body.math("sqrt", body.math("add", one, body.math("mul", ratio, ratio))))
        longest = body.math("fmax", a, b)
        edge = body.math("or", body.math("isinf", longest), body.math("eq", long, zero))
        return body.where(edge, longest, length)
