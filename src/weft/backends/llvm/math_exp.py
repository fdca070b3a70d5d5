"""Exponentials in f32 as vector code (see `math.py`): own polynomials, no branches, no calls.

e^x = 2^n · e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2; the coefficients are minimax fits on that interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction, at_least, at_most

# Adding this to |v| < 2^22 rounds v to an integer and leaves it in the low bits of the sum, here with the bias that
# exponents have: shifted up, they are a power of two.
_BIAS = 127.0
_ROUNDING = 12582912.0 + _BIAS  # 1.5 · 2^23
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; n times the first has few enough digits for the difference to be exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
# e^r and 2^r for |r| ≤ ln 2 / 2 and 1/2; less well fitted up to twice that
_EXP = (
    *(1.0, 1.0, 0.5, 0.1666669100522995, 0.04166669398546219),
    *(0.008328383788466454, 0.0013912174617871642, 0.00022265415464062244),
)
_EXP2 = (
    *(1.0, 0.6931471824645996, 0.24022650718688965, 0.05550416558980942, 0.009618137031793594),
    *(0.0013326394837349653, 0.0001542772224638611, 1.707534829620272e-05),
)
# (e^r - 1 - r) / r²
_EXPM1 = (0.4999999403953552, 0.16666516661643982, 0.04166810214519501, 0.008369195275008678, 0.0013838898157700896)
# ((e^2r - 1) / 2 - r) / r²
_HALF_EXPM1 = (0.9999999403953552, 0.6666618585586548, 0.33333948254585266, 0.13386034965515137, 0.04438622295856476)


def _power_of_two(rounding: E) -> E:
    """2^n of a sum with `_ROUNDING`, for -127 < n < 128; 0 and inf beside that."""
    return (rounding.bits() << 23).as_type("float")


def _reduced(x: E) -> tuple[E, E]:
    """r, and the sum that rounds to n."""
    rounding = x.fma(_LOG2_E, _ROUNDING)
    n = rounding - _ROUNDING
    return n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x)), rounding


def _minus_expm1(minus_r: E) -> E:
    """1 - e^r of -r."""
    return (-horner(minus_r, _alternating(_EXPM1))).fma(minus_r * minus_r, minus_r)


def _minus_half_expm1(minus_r: E) -> E:
    """(1 - e^2r) / 2 of -r."""
    return (-horner(minus_r, _alternating(_HALF_EXPM1))).fma(minus_r * minus_r, minus_r)


def _alternating(coefficients: Sequence[float]) -> list[float]:
    """The coefficients of p(-x)."""
    return [-c if k % 2 else c for k, c in enumerate(coefficients)]


def exp(x: E) -> E:
    """Below -87.7 the power is 0. n = 128 has none: there n stays 127 and r grows, up to ln 2 and to infinity."""
    x = at_least(x, -88.0)
    rounding = at_most(x.fma(_LOG2_E, _ROUNDING), _ROUNDING + 127)
    n = rounding - _ROUNDING
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    return horner(r, _EXP) * _power_of_two(rounding)


def exp2(x: E) -> E:
    x = at_least(x, -127.0)
    rounding = at_most(x + _ROUNDING, _ROUNDING + 127)
    return horner(x - (rounding - _ROUNDING), _EXP2) * _power_of_two(rounding)


def expm1(x: E) -> E:
    """2^n (e^r - 1) + (2^n - 1), where the second term is exact."""
    clamped = at_most(at_least(x, -17.5), 89.0)
    r, rounding = _reduced(clamped)
    # 2^128 is too large for a float: there, halve the power and double the result.
    large = clamped.compare("ogt", 88.0)
    power = _power_of_two(large.select(rounding - 1.0, rounding))
    result = horner(r, _EXPM1).fma(r * r, r).fma(power, power - 1.0)
    return large.select(result + result, result).copysign(x)


def tanh(x: E) -> E:
    """(1 - e^-2|x|) / (1 + e^-2|x|): halves of 1 - 2^n and of 1 + 2^n, less and plus 2^n (e^2r - 1) / 2."""
    magnitude = at_most(abs(x), 9.1)
    rounding = magnitude.fma(-2 * _LOG2_E, _ROUNDING)
    n = rounding - _ROUNDING
    power = _power_of_two(rounding)
    part = _minus_half_expm1(n.fma(_LN2_LOW / 2, n.fma(_LN2_HIGH / 2, magnitude)))
    difference, total = part.fma(power, power.fma(-0.5, 0.5)), (-part).fma(power, power.fma(0.5, 0.5))
    return (difference / total).copysign(x)


def sigmoid(x: E) -> E:
    """1 / (1 + e^-x), the sum being 2^n + (2^n (e^r - 1) + 1). As in `exp`, n stays 127 where it would be larger."""
    x = at_most(x, 88.0)
    rounding = at_most(x.fma(-_LOG2_E, _ROUNDING), _ROUNDING + 127)
    n = rounding - _ROUNDING
    power = _power_of_two(rounding)
    minus_r = n.fma(_LN2_LOW, n.fma(_LN2_HIGH, x))
    return 1.0 / ((-_minus_expm1(minus_r)).fma(power, 1.0) + power)


EXPONENTIALS: Mapping[str, FloatFunction] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "tanh": tanh,
    "sigmoid": sigmoid,
}
