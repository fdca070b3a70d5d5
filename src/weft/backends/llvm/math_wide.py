"""Functions of f32 computed in double precision, as vector code (see `math.py`).

For the functions that nothing hot calls: 2^x and log2 are good to 34 and 52 bits, and most range checks vanish, since a
double holds every intermediate result. Operands and results are `float`; rounding the result takes care of overflow
and denormals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction, at_least, at_most, narrowed, widened

_ROUNDING = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to an integer, which is left in the low bits
# (2^r - 1) / r for |r| ≤ 1/2
_EXP2 = (
    *(0.6931471807041953, 0.24022651066484035, 0.0555041036643738, 0.009618038118480459),
    *(0.0013333934767001598, 0.00015466766160135607, 1.5196243950219358e-05),
)
# log2((1 + s) / (1 - s)) / s in s², for the quotient between sqrt(1/2) and sqrt(2)
_LOG2 = (
    *(2.885390081777927, 0.9617966939244116, 0.5770780172274023, 0.4121984040447571),
    *(0.32061628574730716, 0.261446765407111, 0.24289238578148292),
)
_SQRT_HALF = 0x3FE6A09E  # upper word of the bits


def _exp2(x: E) -> E:
    """2^x of a double; beyond ±200 it stops growing, which no float can tell."""
    x = at_most(at_least(x, -200.0), 200.0)
    rounding = x + _ROUNDING
    r = x - (rounding - _ROUNDING)
    power = ((rounding.bits() << 52) + (1023 << 52)).as_type("double")
    return horner(r, (1.0, *_EXP2)) * power


def _log2(x: E) -> E:
    """log2 of a positive double, of 0, inf and NaN; NaN of a negative one."""
    bits = x.bits()
    # The exponent as i32: AVX2 has neither 64-bit arithmetic shifts nor conversions.
    n = ((bits >> 32).to("trunc", "i32") - _SQRT_HALF).op("ashr", 20)
    m = (bits - (n.to("sext", "i64") << 52)).as_type("double")
    s = (m - 1.0) / (m + 1.0)
    result = horner(s * s, _LOG2).fma(s, n.to("sitofp", "double"))
    result = x.compare("olt", float("inf")).select(result, x)
    outside = x.compare("oeq", 0.0).select(float("-inf"), x.of(float("nan")))
    return x.compare("ugt", 0.0).select(result, outside)


def _log(x: E) -> E:
    return _log2(x) * math.log(2)


# (sinh x - x) / x³ in x², up to 1
_SINH = (0.1666666716337204, 0.00833331048488617, 0.00019842891197185963, 2.782267074508127e-06)


def sinh(x: E) -> E:
    exponential = _exp2(widened(x) * math.log2(math.e))
    large = narrowed((exponential - 1.0 / exponential) * 0.5, "float")
    square = x * x
    small = horner(square, _SINH).fma(x * square, x)
    return abs(x).compare("olt", 1.0).select(small, large).copysign(x)


def cosh(x: E) -> E:
    exponential = _exp2(widened(x) * math.log2(math.e))
    return narrowed((exponential + 1.0 / exponential) * 0.5, "float")


def asinh(x: E) -> E:
    wide = abs(widened(x))
    large = narrowed(_log(wide + wide.fma(wide, 1.0).call("sqrt")), "float")
    square = x * x
    small = square.fma(3 / 40, -1 / 6).fma(x * square, x)
    return abs(x).compare("olt", 1 / 16).select(small, large).copysign(x)


def acosh(x: E) -> E:
    wide = x.compare("olt", 1.0).select(float("nan"), widened(x))
    return narrowed(_log(wide + wide.fma(wide, -1.0).call("sqrt")), "float")


def atanh(x: E) -> E:
    wide = widened(x)
    large = narrowed(_log((1.0 + wide) / (1.0 - wide)) * 0.5, "float")
    return abs(x).compare("olt", 2.0**-13).select(x, large)


# e^(x²) erfc(x) in (x - 3) / (x + 3), for x from 0 to 10.2
_ERFCX = (
    *(0.17900115118091464, -0.3262335601460382, 0.24560380195524165, -0.15011593102925122, 0.07166582881264763),
    *(-0.024392583888988188, 0.004269215026901145, 0.0007083272309679151, -0.0005972925042375313),
    *(4.325857563557123e-05, 6.395360164098619e-05, -9.547265375224378e-06, -6.694628203098316e-06),
)


def erfc(x: E) -> E:
    wide = at_most(abs(widened(x)), 10.2)
    gaussian = _exp2(wide * wide * -math.log2(math.e))
    result = horner((wide - 3.0) / (wide + 3.0), _ERFCX) * gaussian
    return narrowed(x.compare("olt", 0.0).select(2.0 - result, result), "float")


# erfinv(x) / x by w = -log(1 - x²): in w - 3 up to w = 6, then in sqrt(w) - 3.25 up to the last float before 1
_ERFINV_SMALL = (
    *(1.6235420098167552, 0.24163039391426913, -0.005738163470338365, -0.0008361567849783502, 0.00019509944709800799),
    *(-1.2734092808376024e-05, -1.7667302384362732e-06, 4.554248967591976e-07, -1.9524190625015018e-08),
    *(-6.304416124303563e-09, 6.795225059598021e-10, 3.5327399136059016e-11),
)
_ERFINV_LARGE = (
    *(3.083885583987372, 1.0052583573606042, 0.0053723193955088405, -0.0037391958862465872, 0.0024784010304899212),
    *(-0.0017511557246321263, 0.0009997886963150908, -0.00023583778693170727, -5.049448707450904e-05),
)


def erfinv(x: E) -> E:
    wide = widened(x)
    w = -_log((1.0 - wide) * (1.0 + wide))
    small = horner(w - 3.0, _ERFINV_SMALL)
    large = horner(w.call("sqrt") - 3.25, _ERFINV_LARGE)
    factor = w.compare("olt", 6.0).select(small, large)
    # The polynomials do not know that the function is infinite at ±1.
    factor = w.compare("oeq", float("inf")).select(w, factor)
    return narrowed(wide * factor, "float")


WIDE: Mapping[str, FloatFunction] = {
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "erfc": erfc,
    "erfinv": erfinv,
}
