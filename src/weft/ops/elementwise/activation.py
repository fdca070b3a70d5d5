"""The activation functions that models and kernels know by name; all are composed of functions of single elements."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ops import numerics
from weft.ops.base import Precision, op
from weft.ops.body import Body, Value
from weft.ops.elementwise.pointwise import FLOATS, NUMBERS, FloatFunction, Pointwise, in_f32
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import unary


class Activation(Pointwise):
    """A function of one float."""

    KINDS: ClassVar[tuple[str, ...]] = ("float",)


@op("sigmoid", aten="sigmoid.default", onnx="Sigmoid", stablehlo="logistic", samples=unary(-8, 8, FLOATS))
class Sigmoid(FloatFunction):
    """1 / (1 + e**-x)."""

    AUTOCAST: ClassVar[Precision] = "follow"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.sigmoid(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        return (b.mul(g, b.mul(y, b.sub(b.full_like(y, 1), y))),)


@op("log_sigmoid", samples=unary(-8, 8, FLOATS))
class LogSigmoid(Activation):
    """log(sigmoid(x)), without overflow on either side."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.mul(grads[0], b.sigmoid(b.neg(operands[0]))),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value) -> Value:
        small = body.math("exp", body.math("neg", body.math("abs", x)))
        return body.math("sub", body.math("min", x, body.constant(0, x.dtype)), body.math("log1p", small))


@op("relu", aten="relu.default", onnx="Relu", samples=unary(dtypes=NUMBERS))
class Relu(Pointwise):
    """x where it is positive, else 0."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, x.dtype.type(0))

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        zero = b.full_like(y, 0)
        return (b.where(b.le(y, zero), zero, g),)  # at NaN, it passes

    @staticmethod
    def tile(body: Body, x: Value) -> Value:
        return body.math("max", x, body.constant(0, x.dtype))


@op("leaky_relu", samples=unary(dtypes=FLOATS, slope=0.1))
class LeakyRelu(Activation):
    """x where it is positive, else `slope * x`."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, slope: float = 0.01) -> np.ndarray:
        return np.where(x > 0, x, x * slope)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, slope: float = 0.01) -> Gradients:
        (g,), (x,) = grads, operands
        return (b.where(b.gt(x, b.full_like(x, 0)), g, b.mul(g, b.full_like(x, slope))),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value, slope: float = 0.01) -> Value:
        scaled = body.math("mul", x, body.constant(slope, x.dtype))
        return body.where(body.math("gt", x, body.constant(0, x.dtype)), x, scaled)


@op(
    "elu",
    samples=(
        *unary(dtypes=FLOATS, alpha=1.0, scale=1.0, input_scale=1.0),
        *unary(dtypes=FLOATS, alpha=1.7, scale=1.1, input_scale=0.6),
    ),
)
class Elu(Activation):
    """`scale * x` where x is positive, else `scale * alpha * (e**(input_scale * x) - 1)`: ELU, SELU and CELU."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> np.ndarray:
        return np.where(x > 0, x * scale, np.expm1(x * input_scale) * (alpha * scale))

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        alpha: float = 1.0,
        scale: float = 1.0,
        input_scale: float = 1.0,
    ) -> Gradients:
        (g,), (x,) = grads, operands
        curve = b.mul(b.exp(b.mul(x, b.full_like(x, input_scale))), b.full_like(x, alpha * scale * input_scale))
        return (b.mul(g, b.where(b.gt(x, b.full_like(x, 0)), b.full_like(x, scale), curve)),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
        line = body.math("mul", x, body.constant(scale, x.dtype))
        curve = body.math("expm1", body.math("mul", x, body.constant(input_scale, x.dtype)))
        curve = body.math("mul", curve, body.constant(alpha * scale, x.dtype))
        return body.where(body.math("gt", x, body.constant(0, x.dtype)), line, curve)


GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def _check_approximate(approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"gelu has no approximation {approximate!r}", hint='use "none" or "tanh"')


@op(
    "gelu",
    samples=(*unary(dtypes=FLOATS, approximate="none"), *unary(dtypes=FLOATS, approximate="tanh")),
)
class Gelu(Activation):
    """x times the probability that a normal variable is below x; `approximate` is none or tanh."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, approximate: str = "none") -> np.ndarray:
        _check_approximate(approximate)
        if approximate == "tanh":
            return x * numerics.sigmoid(x * (x * x * (2 * GELU_SCALE * GELU_CUBE) + 2 * GELU_SCALE))
        return 0.5 * x * (1 + numerics.erf(x * math.sqrt(0.5)))

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, approximate: str = "none") -> Gradients:
        (g,), (x,) = grads, operands

        def times(value: SSAValue, number: float) -> SSAValue:
            return b.mul(value, b.full_like(x, number))

        one, square = b.full_like(x, 1), b.mul(x, x)
        if approximate == "tanh":
            curve = b.tanh(times(b.mul(x, b.add(one, times(square, GELU_CUBE))), GELU_SCALE))
            inner = times(b.add(one, times(square, 3 * GELU_CUBE)), GELU_SCALE)
            slope = b.mul(b.mul(x, b.sub(one, b.mul(curve, curve))), inner)
            return (b.mul(g, times(b.add(b.add(one, curve), slope), 0.5)),)
        probability = times(b.add(one, b.erf(times(x, math.sqrt(0.5)))), 0.5)
        density = times(b.exp(times(square, -0.5)), 1 / math.sqrt(2 * math.pi))
        return (b.mul(g, b.add(probability, b.mul(x, density))),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value, approximate: str = "none") -> Value:
        def times(value: Value, number: float) -> Value:
            return body.math("mul", value, body.constant(number, x.dtype))

        if approximate == "tanh":
            # (1 + tanh z) / 2 is the sigmoid of 2z, which keeps the digits of small ones and takes fewer steps.
            cube = times(body.math("mul", x, x), 2 * GELU_SCALE * GELU_CUBE)
            inner = body.math("mul", x, body.math("add", cube, body.constant(2 * GELU_SCALE, x.dtype)))
            return body.math("mul", x, body.math("sigmoid", inner))
        curve = body.math("erf", times(x, math.sqrt(0.5)))
        return body.math("mul", times(x, 0.5), body.math("add", body.constant(1, x.dtype), curve))


@op("silu", aten="silu.default", onnx="Swish", samples=unary(-8, 8, FLOATS))
class Silu(Activation):
    """x times sigmoid(x)."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return x * numerics.sigmoid(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,), (y,) = grads, operands, results
        s = b.sigmoid(x)
        return (b.mul(g, b.add(y, b.mul(s, b.sub(b.full_like(x, 1), y)))),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value) -> Value:
        return body.math("mul", x, body.math("sigmoid", x))


@op(
    "softplus",
    samples=(*unary(dtypes=FLOATS, beta=1.0, threshold=20.0), *unary(dtypes=FLOATS, beta=2.0, threshold=4.0)),
)
class Softplus(Activation):
    """log(1 + e**(beta * x)) / beta, and x itself where `beta * x` is above the threshold."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, beta: float = 1.0, threshold: float = 20.0) -> np.ndarray:
        return np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        beta: float = 1.0,
        threshold: float = 20.0,
    ) -> Gradients:
        (g,), (x,) = grads, operands
        scaled = b.mul(x, b.full_like(x, beta))
        return (b.where(b.gt(scaled, b.full_like(x, threshold)), g, b.mul(g, b.sigmoid(scaled))),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
        scaled = body.math("mul", x, body.constant(beta, x.dtype))
        curve = body.math("div", body.math("log1p", body.math("exp", scaled)), body.constant(beta, x.dtype))
        return body.where(body.math("gt", scaled, body.constant(threshold, x.dtype)), x, curve)


@op("mish", aten="mish.default", onnx="Mish", samples=unary(-8, 8, FLOATS))
class Mish(Activation):
    """x times tanh(log(1 + e**x))."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.log1p(np.exp(x)))

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        curve = b.tanh(b.softplus(x))
        slope = b.mul(b.mul(x, b.sigmoid(x)), b.sub(b.full_like(x, 1), b.mul(curve, curve)))
        return (b.mul(g, b.add(curve, slope)),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value) -> Value:
        return body.math("mul", x, body.math("tanh", body.math("log1p", body.math("exp", x))))


@op("hardsigmoid", aten="hardsigmoid.default", samples=unary(-6, 6, FLOATS))
class HardSigmoid(Activation):
    """x / 6 + 1 / 2, kept in [0, 1]."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return np.clip(x + 3, 0, 6) / 6

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        sloped = b.lt(b.abs(x), b.full_like(x, 3))
        return (b.where(sloped, b.mul(g, b.full_like(x, 1 / 6)), b.full_like(x, 0)),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value) -> Value:
        return body.math("div", _clamped_plus_3(body, x), body.constant(6, x.dtype))


@op("hardswish", aten="hardswish.default", onnx="HardSwish", samples=unary(-6, 6, FLOATS))
class HardSwish(Activation):
    """x times hardsigmoid(x)."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return x * np.clip(x + 3, 0, 6) / 6

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        curve = b.add(b.mul(x, b.full_like(x, 1 / 3)), b.full_like(x, 0.5))
        sloped = b.where(b.le(x, b.full_like(x, -3)), b.full_like(x, 0), b.mul(g, curve))
        return (b.where(b.ge(x, b.full_like(x, 3)), g, sloped),)

    @staticmethod
    @in_f32
    def tile(body: Body, x: Value) -> Value:
        return body.math("div", body.math("mul", x, _clamped_plus_3(body, x)), body.constant(6, x.dtype))


def _clamped_plus_3(body: Body, x: Value) -> Value:
    shifted = body.math("add", x, body.constant(3, x.dtype))
    return body.math("min", body.math("max", shifted, body.constant(0, x.dtype)), body.constant(6, x.dtype))
