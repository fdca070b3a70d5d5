"""Exponentials in f32 as vector code (see `math.py`): own polynomials, no branches, no calls.

e^x = 2^n · e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2; the coefficients are minimax fits on that interval.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction

# Adding this to |v| < 2^22 rounds v to an integer and leaves it in the low bits of the sum.
_ROUNDING = 12582912.0  # 1.5 · 2^23
_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the product of n with the first, and the second, are each rounded once by fma.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
# (e^r - 1 - r) / r²
_EXP = (0.4999999403953552, 0.16666516661643982, 0.04166810214519501, 0.008369195275008678, 0.0013838898157700896)
# (2^r - 1) / r
_EXP2 = (
    *(0.6931471824645996, 0.24022594094276428, 0.055503662675619125),
    *(0.009625445120036602, 0.0013387920334935188, 0.00013332664093468338),
)
_MIN_NORMAL = 1.1754943508222875e-38


def _scaled(x: E, fraction: E, rounding: E, low: float, high: float) -> E:
    """fraction · 2^n: n is added to the exponent as an integer.

    Below `low` the result would be denormal and is 0; above `high` it is inf. `x + inf` is NaN for a NaN.
    """
    result = (fraction.bits() + (rounding.bits() << 23)).as_type("float")
    result = x.compare("olt", low).select(0.0, result)
    return x.compare("ole", high).select(result, x + float("inf"))


def exp(x: E) -> E:
    rounding = x.fma(_LOG2_E, _ROUNDING)
    n = rounding - _ROUNDING
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    return _scaled(x, horner(r, (1.0, 1.0, *_EXP)), rounding, -87.33654022216797, 88.72283172607422)


def exp2(x: E) -> E:
    rounding = x + _ROUNDING
    r = x - (rounding - _ROUNDING)
    return _scaled(x, horner(r, (1.0, *_EXP2)), rounding, -126.0, 127.99999237060547)


def _sigmoid(x: E) -> E:
    return 1.0 / (1.0 + exp(-x))


EXPONENTIALS: Mapping[str, FloatFunction] = {"exp": exp, "exp2": exp2, "sigmoid": _sigmoid}
