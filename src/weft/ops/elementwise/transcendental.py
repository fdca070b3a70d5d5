"""Exponentials, logarithms, roots and the trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from weft.ops import numerics
from weft.ops.base import Precision, op
from weft.ops.elementwise.pointwise import FLOATS, FloatFunction
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import binary, unary


@op("exp", aten="exp.default", onnx="Exp", stablehlo="exponential", samples=unary(dtypes=FLOATS))
class Exp(FloatFunction):
    """e to the power x."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.mul(grads[0], results[0]),)


@op("exp2", aten=("exp2.default", "special_exp2.default"), samples=unary(dtypes=FLOATS))
class Exp2(FloatFunction):
    """2 to the power x."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.exp2(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(g, b.mul(y, b.full_like(y, math.log(2)))),)


@op(
    "expm1",
    aten=("expm1.default", "special_expm1.default"),
    stablehlo="exponential_minus_one",
    samples=unary(dtypes=FLOATS),
)
class Expm1(FloatFunction):
    """e to the power x, less 1, exact where x is small."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.expm1(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(g, b.add(y, b.full_like(y, 1))),)


@op("log", aten="log.default", onnx="Log", stablehlo="log", samples=unary(low=0.1, dtypes=FLOATS))
class Log(FloatFunction):
    """Natural logarithm."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.log(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.div(grads[0], operands[0]),)


@op("log2", aten="log2.default", samples=unary(low=0.1, dtypes=FLOATS))
class Log2(FloatFunction):
    """Logarithm to base 2."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.log2(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.div(g, b.mul(x, b.full_like(x, math.log(2)))),)


@op("log10", aten="log10.default", samples=unary(low=0.1, dtypes=FLOATS))
class Log10(FloatFunction):
    """Logarithm to base 10."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.log10(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.div(g, b.mul(x, b.full_like(x, math.log(10)))),)


@op(
    "log1p",
    aten=("log1p.default", "special_log1p.default"),
    stablehlo="log_plus_one",
    samples=unary(low=-0.9, dtypes=FLOATS),
)
class Log1p(FloatFunction):
    """Natural logarithm of 1 + x, exact where x is small."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.log1p(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.div(g, b.add(x, b.full_like(x, 1))),)


@op("sqrt", aten="sqrt.default", onnx="Sqrt", stablehlo="sqrt", samples=unary(low=0.1, dtypes=FLOATS))
class Sqrt(FloatFunction):
    """Square root."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.sqrt(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.div(g, b.add(y, y)),)


@op("rsqrt", aten="rsqrt.default", stablehlo="rsqrt", samples=unary(low=0.1, dtypes=FLOATS))
class Rsqrt(FloatFunction):
    """1 / √x."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.rsqrt(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(b.mul(g, b.full_like(y, -0.5)), b.mul(y, b.mul(y, y))),)


@op("sin", aten="sin.default", onnx="Sin", stablehlo="sine", samples=unary(-20, 20, FLOATS))
class Sin(FloatFunction):
    """Sine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.sin(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.cos(x)),)


@op("cos", aten="cos.default", onnx="Cos", stablehlo="cosine", samples=unary(-20, 20, FLOATS))
class Cos(FloatFunction):
    """Cosine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.cos(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.neg(b.mul(g, b.sin(x))),)


@op("tan", aten="tan.default", onnx="Tan", stablehlo="tan", samples=unary(-1.4, 1.4, FLOATS))
class Tan(FloatFunction):
    """Tangent."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.tan(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(g, b.add(b.full_like(y, 1), b.mul(y, y))),)


@op("asin", aten="asin.default", onnx="Asin", samples=unary(-0.95, 0.95, FLOATS))
class Asin(FloatFunction):
    """Inverse sine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arcsin(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.rsqrt(b.sub(b.full_like(x, 1), b.mul(x, x)))),)


@op("acos", aten="acos.default", onnx="Acos", samples=unary(-0.95, 0.95, FLOATS))
class Acos(FloatFunction):
    """Inverse cosine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arccos(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.neg(b.mul(g, b.rsqrt(b.sub(b.full_like(x, 1), b.mul(x, x))))),)


@op("atan", aten="atan.default", onnx="Atan", samples=unary(dtypes=FLOATS))
class Atan(FloatFunction):
    """Inverse tangent."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arctan(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.div(g, b.add(b.full_like(x, 1), b.mul(x, x))),)


@op("atan2", stablehlo="atan2", samples=binary(dtypes=FLOATS))
class Atan2(FloatFunction):
    """The angle of the point whose ordinate is the first operand and whose abscissa is the second."""

    @staticmethod
    @rounded_once
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.arctan2(a, b)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y, x) = grads, operands
        square, zero = b.add(b.mul(x, x), b.mul(y, y)), b.full_like(results[0], 0)
        at_origin = b.eq(square, zero)  # where no angle is: torch's gradient there is 0
        share = b.div(b.where(at_origin, zero, g), b.where(at_origin, b.full_like(results[0], 1), square))
        return b.mul(share, x), b.neg(b.mul(share, y))


@op("sinh", aten="sinh.default", onnx="Sinh", samples=unary(dtypes=FLOATS))
class Sinh(FloatFunction):
    """Hyperbolic sine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.sinh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.cosh(x)),)


@op("cosh", aten="cosh.default", onnx="Cosh", samples=unary(dtypes=FLOATS))
class Cosh(FloatFunction):
    """Hyperbolic cosine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.cosh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.sinh(x)),)


@op("tanh", aten="tanh.default", onnx="Tanh", stablehlo="tanh", samples=unary(-8, 8, FLOATS))
class Tanh(FloatFunction):
    """Hyperbolic tangent."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.tanh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(g, b.sub(b.full_like(y, 1), b.mul(y, y))),)


@op("asinh", aten="asinh.default", onnx="Asinh", samples=unary(dtypes=FLOATS))
class Asinh(FloatFunction):
    """Inverse hyperbolic sine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arcsinh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.rsqrt(b.add(b.mul(x, x), b.full_like(x, 1)))),)


@op("acosh", aten="acosh.default", onnx="Acosh", samples=unary(1.1, 8, FLOATS))
class Acosh(FloatFunction):
    """Inverse hyperbolic cosine."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arccosh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.mul(g, b.rsqrt(b.sub(b.mul(x, x), b.full_like(x, 1)))),)


@op("atanh", aten="atanh.default", onnx="Atanh", samples=unary(-0.95, 0.95, FLOATS))
class Atanh(FloatFunction):
    """Inverse hyperbolic tangent."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.arctanh(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.div(g, b.sub(b.full_like(x, 1), b.mul(x, x))),)
