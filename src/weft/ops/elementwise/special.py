"""The special functions: the error function and its relatives, and those of the gamma function."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from weft.ops import numerics
from weft.ops.base import op
from weft.ops.elementwise.pointwise import FLOATS, FloatFunction
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import unary


@op("erf", aten=("erf.default", "special_erf.default"), onnx="Erf", samples=unary(dtypes=FLOATS))
class Erf(FloatFunction):
    """The error function: 2/√π ∫₀ˣ exp(-t²) dt."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.erf(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        slope = b.mul(b.full_like(x, 2 / math.sqrt(math.pi)), b.exp(b.neg(b.mul(x, x))))
        return (b.mul(g, slope),)


@op("erfc", aten=("erfc.default", "special_erfc.default"), samples=unary(dtypes=FLOATS))
class Erfc(FloatFunction):
    """1 - erf(x), exact where that is small."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.erfc(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (x,) = grads, operands
        slope = b.mul(b.full_like(x, -2 / math.sqrt(math.pi)), b.exp(b.neg(b.mul(x, x))))
        return (b.mul(g, slope),)


@op("erfinv", aten=("erfinv.default", "special_erfinv.default"), samples=unary(-0.95, 0.95, FLOATS))
class ErfInv(FloatFunction):
    """The x with erf(x) equal to the operand: infinite at ±1, NaN beyond."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.erfinv(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        (g,), (y,) = grads, results
        slope = b.mul(b.full_like(y, math.sqrt(math.pi) / 2), b.exp(b.mul(y, y)))
        return (b.mul(g, slope),)


@op("lgamma", aten=("lgamma.default", "special_gammaln.default"), samples=unary(low=0.1, dtypes=FLOATS))
class Lgamma(FloatFunction):
    """log |Γ(x)|."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.lgamma(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.mul(grads[0], b.digamma(operands[0])),)


@op(
    "digamma",
    aten=("digamma.default", "special_digamma.default", "special_psi.default"),
    samples=unary(low=0.1, dtypes=FLOATS),
)
class Digamma(FloatFunction):
    """The derivative of log Γ(x): NaN at negative integers, ∓∞ at ±0."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray) -> np.ndarray:
        return numerics.digamma(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (b.mul(grads[0], trigamma(b, operands[0])),)


_SHIFTS = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The Bernoulli numbers B₂, B₄, …: the coefficients of the series at large numbers."""


def trigamma(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """The second derivative of log Γ(x): reflected below 1/2, shifted to large numbers, then by its series."""

    def number(value: float) -> SSAValue:
        return b.full_like(x, value)

    below = b.lt(x, number(0.5))
    z = b.where(below, b.sub(number(1), x), x)
    total: SSAValue | None = None
    for _ in range(_SHIFTS):
        part = b.reciprocal(b.mul(z, z))
        total = part if total is None else b.add(total, part)
        z = b.add(z, number(1))
    assert total is not None
    inverse = b.reciprocal(z)
    square = b.mul(inverse, inverse)
    series = number(_BERNOULLI[-1])
    for coefficient in reversed(_BERNOULLI[:-1]):
        series = b.add(b.mul(series, square), number(coefficient))
    tail = b.add(inverse, b.mul(square, b.add(number(0.5), b.mul(series, inverse))))
    found = b.add(total, tail)
    safe = b.where(below, x, number(0.5))  # the branch that is not taken must stay finite, also in derivatives
    sine = b.div(number(math.pi), b.sin(b.mul(safe, number(math.pi))))
    return b.where(below, b.sub(b.mul(sine, sine), found), found)
