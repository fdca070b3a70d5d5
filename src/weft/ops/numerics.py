"""What the elementwise functions mean, in NumPy, where NumPy itself has no such function or defines it otherwise.

References of graph ops and the table of `weft.tile.functions` are made of these. Arithmetic happens in the operand's
type; floats narrower than 32 bits are computed in f32 and rounded once, which `rounded_once` arranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from weft.ir.types import bf16, f8e4m3, f8e5m2, f16

NARROW = frozenset(dtype.numpy for dtype in (f16, bf16, f8e4m3, f8e5m2))
"""The floats that are computed in f32."""

Implementation = Callable[..., np.ndarray]


def rounded_once(function: Implementation) -> Implementation:
    """Let narrow floats be computed in f32 throughout, and round the result to their type."""

    @wraps(function)
    def rounding(*arrays: np.ndarray, **params: Any) -> np.ndarray:
        narrow = next((array.dtype for array in arrays if array.dtype in NARROW), None)
        if narrow is None:
            return function(*arrays, **params)
        result = function(*(a.astype(np.float32) if a.dtype in NARROW else a for a in arrays), **params)
        return result.astype(narrow) if result.dtype == np.float32 else result

    return rounding


def power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """`base ** exponent`; integers wrap around, and to a negative power they are what is left of 1 / base**n."""
    if base.dtype.kind != "i":
        return np.power(base, exponent)
    odd = np.where(exponent & 1, base, base.dtype.type(1))
    inverse = np.where(np.abs(base) == 1, odd, base.dtype.type(0))
    return np.where(exponent < 0, inverse, np.power(base, np.maximum(exponent, exponent.dtype.type(0))))


def truncdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The quotient rounded towards zero."""
    if a.dtype.kind not in "iu":
        return np.trunc(np.divide(a, b))
    quotient = np.floor_divide(a, b)
    inexact = np.multiply(quotient, b) != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(quotient.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """`1 / (1 + e**-x)`, without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, np.ones_like(small)) / (1 + small)


def rsqrt(x: np.ndarray) -> np.ndarray:
    return np.reciprocal(np.sqrt(x))


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert: floats to integers towards zero, anything to bool by `!= 0`, integers by wrapping around."""
    return x.astype(bool) if dtype == np.bool_ else x.astype(dtype)


def bitcast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The same bits read as another type of the same width."""
    return np.asarray(x).view(dtype)


def _pointwise(function: Callable[[float], float]) -> Implementation:
    scalar = np.frompyfunc(function, 1, 1)

    def apply(x: np.ndarray) -> np.ndarray:
        return np.asarray(scalar(x.astype(np.float64)), np.float64).astype(x.dtype)

    return apply


def _lgamma(x: float) -> float:
    if x <= 0 and x.is_integer():
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


erf = _pointwise(math.erf)
erfc = _pointwise(math.erfc)
lgamma = _pointwise(_lgamma)


def erfinv(y: np.ndarray) -> np.ndarray:
    """The x with erf(x) == y; infinite at ±1 and NaN beyond."""
    magnitude = np.abs(y.astype(np.float64))
    inside = np.where(magnitude < 1, magnitude, 0.0)
    # Winitzki's closed form is good to 3 digits; each of Halley's steps trebles them.
    logarithm = np.log1p(-inside * inside)
    term = 2 / (math.pi * 0.147) + logarithm / 2
    x = np.sqrt(np.maximum(np.sqrt(term * term - logarithm / 0.147) - term, 0.0))
    tail = inside > 0.5
    for _ in range(3):
        # Beyond one half, erfc keeps the digits that erf loses.
        difference = np.where(tail, (1 - inside) - erfc(x), erf(x) - inside)
        newton = difference / (2 / math.sqrt(math.pi) * np.exp(-x * x))
        x = x - newton / (1 + x * newton)
    x = np.where(magnitude < 1, x, np.where(magnitude == 1, np.inf, np.nan))
    return np.copysign(x, y.astype(np.float64)).astype(y.dtype)


# B(2n) / 2n, the asymptotic series of the digamma function in 1 / x².
_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(x: np.ndarray) -> np.ndarray:
    """The derivative of log Γ: NaN at negative integers, ∓∞ at ±0."""
    wide = x.astype(np.float64)
    mirrored = wide < 0.5
    z = np.where(mirrored, 1 - wide, wide)
    shift = np.zeros_like(z)
    for _ in range(10):  # from 10 on, what the series leaves out is below the last digit
        near = z < 10
        shift = shift - np.where(near, 1 / z, 0.0)
        z = z + near
    square = 1 / (z * z)
    series = np.zeros_like(z)
    for coefficient in reversed(_DIGAMMA_SERIES):
        series = (series + coefficient) * square
    value = np.log(z) - 0.5 / z - series + shift
    # Of a multiple of π only the fraction counts; taken first, it keeps all its digits.
    fraction = wide - np.round(wide)
    value = np.where(mirrored, value - math.pi / np.tan(math.pi * fraction), value)
    value = np.where((wide < 0) & (fraction == 0), np.nan, value)
    return np.where(wide == 0, np.copysign(np.inf, -wide), value).astype(x.dtype)
