"""Exponentials in f32 as vector code (see `math.py`): own polynomials, no branches, no calls.

e^x = 2^n · e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2; the coefficients are minimax fits on that interval.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction, at_least, at_most

# Adding this to |v| < 2^22 rounds v to an integer and leaves it in the low bits of the sum.
_ROUNDING = 12582912.0  # 1.5 · 2^23
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; n times the first has few enough digits for the difference to be exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
# (e^r - 1 - r) / r²
_EXP = (0.4999999403953552, 0.16666516661643982, 0.04166810214519501, 0.008369195275008678, 0.0013838898157700896)
# (2^r - 1) / r
_EXP2 = (
    *(0.6931471824645996, 0.24022594094276428, 0.055503662675619125),
    *(0.009625445120036602, 0.0013387920334935188, 0.00013332664093468338),
)
# (tanh(x) - x) / x³ in x², up to 0.7
_TANH = (-0.3333318829536438, 0.13329075276851654, -0.053556445986032486, 0.020085524767637253, -0.005132770631462336)


def _reduced(x: E) -> tuple[E, E]:
    """r, and a float whose low bits are n."""
    rounding = x.fma(_LOG2_E, _ROUNDING)
    n = rounding - _ROUNDING
    return n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x)), rounding


def _expm1_of_reduced(r: E) -> E:
    """e^r - 1, to the last digits of small ones too."""
    return horner(r, _EXP).fma(r * r, r)


def _power_of_two(rounding: E) -> E:
    """2^n, for -127 < n < 128."""
    return ((rounding.bits() << 23) + (127 << 23)).as_type("float")


def _scaled(x: E, fraction: E, rounding: E, low: float, high: float) -> E:
    """fraction · 2^n: n is added to the exponent as an integer.

    Below `low` the result would be denormal and is 0; above `high` it is inf. `x + inf` is NaN for a NaN.
    """
    result = (fraction.bits() + (rounding.bits() << 23)).as_type("float")
    result = x.compare("olt", low).select(0.0, result)
    return x.compare("ole", high).select(result, x + float("inf"))


def exp(x: E) -> E:
    r, rounding = _reduced(x)
    return _scaled(x, horner(r, (1.0, 1.0, *_EXP)), rounding, -87.33654022216797, 88.72283172607422)


def exp2(x: E) -> E:
    rounding = x + _ROUNDING
    r = x - (rounding - _ROUNDING)
    return _scaled(x, horner(r, (1.0, *_EXP2)), rounding, -126.0, 127.99999237060547)


def expm1(x: E) -> E:
    """2^n (e^r - 1) + (2^n - 1), where the second term is exact."""
    clamped = at_most(at_least(x, -17.5), 89.0)
    r, rounding = _reduced(clamped)
    # 2^128 is too large for a float: there, halve the power and double the result.
    large = clamped.compare("ogt", 88.0)
    power = _power_of_two(large.select(rounding - 1.0, rounding))
    result = _expm1_of_reduced(r).fma(power, power - 1.0)
    return large.select(result + result, result).copysign(x)


def tanh(x: E) -> E:
    """1 - 2 / (e^2|x| + 1), and an odd polynomial below 0.7."""
    magnitude = at_most(abs(x), 9.1)
    rounding = magnitude.fma(2 * _LOG2_E, _ROUNDING)
    n = rounding - _ROUNDING
    r = n.fma(-_LN2_LOW / 2, n.fma(-_LN2_HIGH / 2, magnitude))
    fraction = horner(r, [c * 2.0**k for k, c in enumerate((1.0, 1.0, *_EXP))])
    large = 1.0 - 2.0 / fraction.fma(_power_of_two(rounding), 1.0)
    square = x * x
    small = horner(square, _TANH).fma(x * square, x)
    return magnitude.compare("olt", 0.7).select(small, large).copysign(x)


def sigmoid(x: E) -> E:
    """1 / (1 + e^-x), the sum being 2^n (e^r - 1) + (2^n + 1), rounded as little as possible."""
    minus = -x
    r, rounding = _reduced(at_most(at_least(minus, -30.0), 88.0))
    power = _power_of_two(rounding)
    constant = power + 1.0
    lost = 1.0 - (constant - power)  # 0 while n < 24
    result = 1.0 / (_expm1_of_reduced(r).fma(power, lost) + constant)
    return minus.compare("ogt", 88.0).select(0.0, result)


EXPONENTIALS: Mapping[str, FloatFunction] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "tanh": tanh,
    "sigmoid": sigmoid,
}
