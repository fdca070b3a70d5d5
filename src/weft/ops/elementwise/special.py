"""The special functions: the error function and its relatives, and those of the gamma function."""

from __future__ import annotations

import math

import numpy as np

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
