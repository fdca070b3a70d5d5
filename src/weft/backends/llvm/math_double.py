"""Functions of f64, lane by lane with the C library, where there is no other code (see `math.py`).

The JIT finds the library's functions in the process. What C lacks (digamma, erfinv) is composed of what it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction, lanewise, narrowed, widened

_LIBRARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma"),
)


def _library(name: str) -> FloatFunction:
    def emit(*args: E) -> E:
        return lanewise(name, *args)

    return emit


def through_double(function: FloatFunction) -> FloatFunction:
    """A function of f32 by that of f64."""

    def emit(x: E) -> E:
        return narrowed(function(widened(x)), "float")

    return emit


def composed(call: Callable[..., E]) -> dict[str, FloatFunction]:
    """What C lacks, of functions that `call` emits by their names."""
    made = {"sigmoid": _sigmoid, "erfinv": _erfinv, "digamma": _digamma}
    return {name: partial(function, call) for name, function in made.items()}


def _sigmoid(call: Callable[..., E], x: E) -> E:
    """By e^-|x|, which does not overflow."""
    small = call("exp", -abs(x))
    return x.compare("olt", 0.0).select(small, x.of(1.0)) / (small + 1.0)


def _erfinv(call: Callable[..., E], x: E) -> E:
    """A closed form good to 3 digits (Winitzki's), then steps of Halley's method, each of which trebles them."""
    magnitude = abs(x)
    logarithm = call("log1p", -magnitude * magnitude)
    term = logarithm * 0.5 + 2 / (math.pi * 0.147)
    root = ((term * term - logarithm * (1 / 0.147)).call("sqrt") - term).call("maxnum", x.of(0.0)).call("sqrt")
    tail = magnitude.compare("ogt", 0.5)
    for _ in range(3):
        # Beyond one half, erfc keeps the digits that erf loses.
        central = call("erf", root) - magnitude
        difference = tail.select((1.0 - magnitude) - call("erfc", root), central)
        newton = difference * (math.sqrt(math.pi) / 2) * call("exp", root * root)
        root = root - newton / (root * newton + 1.0)
    root = magnitude.compare("olt", 1.0).select(root, x.of(float("nan")))
    root = magnitude.compare("oeq", 1.0).select(float("inf"), root)
    return root.copysign(x)


# B(2k) / 2k: the asymptotic series of digamma in 1 / x²
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)


def _digamma(call: Callable[..., E], x: E) -> E:
    """Mirrored to the right of 0, shifted beyond 10, and there the asymptotic series."""
    mirrored = x.compare("olt", 0.01)  # where 1/x is still far from overflow
    z = mirrored.select(1.0 - x, x)
    shift = lost = x.of(0.0)
    for _ in range(10):
        near = z.compare("olt", 10.0)
        # Kahan's sum: ten roundings would show in the result.
        term = near.select(1.0 / z, x.of(0.0)) - lost
        total = shift + term
        shift, lost = total, (total - shift) - term
        z = near.select(z + 1.0, z)
    square = 1.0 / (z * z)
    series = 0.5 / z + horner(square, _DIGAMMA) * square
    value = (call("log", z) - shift) + (lost - series)
    # Of a multiple of π only the fraction counts; taken first, it keeps all its digits.
    fraction = x - x.call("roundeven")
    reflection = math.pi / call("tan", fraction * math.pi)
    value = mirrored.select(value - reflection, value)
    pole = fraction.compare("oeq", 0.0) & x.compare("olt", 0.0)
    value = (pole | x.compare("oeq", float("-inf"))).select(float("nan"), value)
    return x.compare("oeq", 0.0).select((-x.of(float("inf"))).copysign(-x), value)


DOUBLE_ONLY: Mapping[str, FloatFunction] = {
    **{name: _library(name) for name in _LIBRARY},
    **composed(lanewise),
}

# What f32 does not have code of its own for.
SINGLE_THROUGH_DOUBLE: Mapping[str, FloatFunction] = {
    name: through_double(DOUBLE_ONLY[name]) for name in ("lgamma", "digamma")
}
