"""Functions of f64 as code of their own, without calls of a C library (see `math.py`): series and minimax fits.

Results are good to some two units of the last place, those of `tan`, `erfc`, `lgamma`, `digamma` and `erfinv` to a few
more; of `lgamma` left of 0, near its zeros, to as many units of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import factorial

from weft.backends.llvm.math_circles import CIRCLES, sin
from weft.backends.llvm.math_double import composed
from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import (
    FloatFunction,
    at_least,
    at_most,
    divisions,
    fmod_by_steps,
    is_inf,
    power_of_two,
    scaled_by_power,
)
from weft.backends.llvm.math_log import with_limits
from weft.backends.llvm.math_power import signed_power

_INF = float("inf")
_LOG2_E = 1.4426950408889634
# ln 2 and log10 2 in two parts: whole numbers of up to 11 bits times the first are exact.
_LN2_HIGH, _LN2_LOW = 0.6931471805598903, 5.497923018708371e-14
_LOG10_2_HIGH, _LOG10_2_LOW = 0.30102999566395283, 2.8363394551044964e-14
_SQRT_HALF = 0x3FE6A09E667F3BCD  # as bits
_MIN_NORMAL = 2.2250738585072014e-308
_EXP = tuple(1 / factorial(k) for k in range(14))
# (e^r - 1 - r) / r²
_EXPM1 = _EXP[2:]
# (log((1 + s) / (1 - s)) - 2s) / s³ in s²
_LOG = tuple(2 / (2 * k + 3) for k in range(11))
_THIRD_HIGH, _THIRD_LOW = 2 / 3, 3.700743415417188e-17


# -- exponentials ----------------------------------------------------------------------------------------------------


def _reduced(x: E) -> tuple[E, E]:
    """n, and r = x - n ln 2."""
    n = (x * _LOG2_E).call("roundeven")
    return n.to("fptosi", "i64"), n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))


def _exp(x: E, rest: E | float = 0.0) -> E:
    """e^(x + rest), of a rest that is too small to be seen in the sum."""
    n, r = _reduced(at_most(at_least(x, -746.0), 710.0))
    r = r + rest if isinstance(rest, E) else r
    return x.compare("uno", x).select(x, scaled_by_power(horner(r, _EXP), n))


def _exp2(x: E) -> E:
    clamped = at_most(at_least(x, -1076.0), 1025.0)
    n = clamped.call("roundeven")
    power = horner((clamped - n) * math.log(2), _EXP)
    return x.compare("uno", x).select(x, scaled_by_power(power, n.to("fptosi", "i64")))


def _expm1(x: E) -> E:
    """2^n ((1 - 2^-n) + (e^r - 1)), with what r and the sum of its first two terms lost."""
    clamped = at_most(at_least(x, -40.0), 710.0)
    n = (clamped * _LOG2_E).call("roundeven")
    start = n.fma(-_LN2_HIGH, clamped)  # exact
    r = n.fma(-_LN2_LOW, start)
    lost = n.fma(-_LN2_LOW, start - r)
    n = n.to("fptosi", "i64")
    whole = 1.0 - power_of_two((0 - n).call("smax", n.of(-1022)))
    first = whole + r
    rest = ((whole - first) + r) + lost
    result = scaled_by_power(first + horner(r, _EXPM1).fma(r * r, rest), n)
    return (x.compare("uno", x) | x.compare("oeq", 0.0)).select(x, result)


def _half_exp(x: E) -> E:
    """e^x / 2 of x ≥ 0, which is finite a little longer than e^x."""
    n, r = _reduced(at_most(x, 712.0))
    return x.compare("uno", x).select(x, scaled_by_power(horner(r, _EXP), n - 1))


def _sinh(x: E) -> E:
    magnitude = abs(x)
    e = _expm1(magnitude)
    near = (e + e / (e + 1.0)) * 0.5
    return magnitude.compare("olt", 22.0).select(near, _half_exp(magnitude)).copysign(x)


def _cosh(x: E) -> E:
    half = _half_exp(abs(x))
    return half + 0.25 / half


def _tanh(x: E) -> E:
    e = _expm1(at_most(abs(x), 22.0) * 2.0)
    return x.compare("uno", x).select(x, (e / (e + 2.0)).copysign(x))


# -- logarithms ------------------------------------------------------------------------------------------------------


def _split(x: E) -> tuple[E, E]:
    """n as a double, and f, of x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)."""
    denormal = x.compare("olt", _MIN_NORMAL)
    bits = denormal.select(x * 2.0**54, x).bits()
    n = (bits - _SQRT_HALF).op("ashr", 52)
    f = (bits - (n << 52)).as_type("double") - 1.0
    n = n.to("sitofp", "double")
    return denormal.select(n - 54.0, n), f


def _log_of(n: E, f: E, rest: E | float = 0.0) -> E:
    """n ln 2 + ln(1 + f) + rest."""
    s = f / (f + 2.0)
    half = f * f * 0.5
    z = s * s
    low = n.fma(_LN2_LOW, n.of(rest))
    # f - f²/2 + s (f²/2 + ...), the largest last
    return n.fma(_LN2_HIGH, f - (half - s.fma(half + horner(z, _LOG) * z, low)))


def _log(x: E) -> E:
    return with_limits(x, _log_of(*_split(x)))


def _log2(x: E) -> E:
    n, f = _split(x)
    return with_limits(x, _log_of(n.of(0.0), f).fma(_LOG2_E, n))


def _log10(x: E) -> E:
    n, f = _split(x)
    low = _log_of(n.of(0.0), f).fma(math.log10(math.e), n * _LOG10_2_LOW)
    return with_limits(x, n.fma(_LOG10_2_HIGH, low))


def _log1p(x: E) -> E:
    """The logarithm of u = 1 + x, and what the sum lost as a share of u."""
    u = x + 1.0
    lost = u.compare("olt", 2.0**53).select((x - (u - 1.0)) / u, x.of(0.0))
    result = _log_of(*_split(u), lost)
    result = x.compare("olt", _INF).select(result, x)
    outside = x.compare("oeq", -1.0).select(-_INF, x.of(float("nan")))
    result = x.compare("ugt", -1.0).select(result, outside)
    return x.compare("oeq", 0.0).select(x, result)


def _asinh(x: E) -> E:
    magnitude = abs(x)
    square = magnitude * magnitude
    near = _log1p(magnitude + square / ((square + 1.0).call("sqrt") + 1.0))
    return magnitude.compare("ogt", 2.0**28).select(_log(magnitude) + math.log(2), near).copysign(x)


def _acosh(x: E) -> E:
    t = x - 1.0
    near = _log1p(t + (t * t + t * 2.0).call("sqrt"))
    result = x.compare("ogt", 2.0**28).select(_log(x) + math.log(2), near)
    return x.compare("olt", 1.0).select(x.of(float("nan")), result)


def _atanh(x: E) -> E:
    magnitude = abs(x)
    return (_log1p(magnitude * 2.0 / (1.0 - magnitude)) * 0.5).copysign(x)


def _pow(x: E, y: E) -> E:
    """e^(y ln |x|) with the logarithm to twice the digits, by the rules of C's `pow` for all that is special."""
    magnitude = abs(x)
    n, f = _split(magnitude)
    # 2s = 2f / (2 + f) in two parts
    divisor = f + 2.0
    s = f / divisor
    s_low = ((-s).fma(divisor, f) - s * (f - (divisor - 2.0))) / divisor
    z = s * s
    # 2/3 s³ in two parts: what y makes of its last digits is seen
    cube = z * s
    cube_low = z.fma(s, -cube) + (s.fma(s, -z) * s + s_low * z * 3.0)
    third = cube * _THIRD_HIGH
    third_low = cube.fma(_THIRD_HIGH, -third) + cube_low.fma(_THIRD_HIGH, cube * _THIRD_LOW)
    small = (horner(z, _LOG[1:]) * z).fma(cube, n.fma(_LN2_LOW, s_low * 2.0) + third_low)
    large = n * _LN2_HIGH
    total = large + s * 2.0
    most = total + third
    small = small + (((large - total) + s * 2.0) + ((total - most) + third))
    high = most + small
    low = (most - high) + small
    special = (magnitude.compare("oeq", 0.0) | magnitude.compare("uge", _INF)).select(
        magnitude.compare("oeq", 0.0).select(-_INF, magnitude), high
    )
    product = y * special
    finite = abs(product).compare("olt", 800.0)
    rest = finite.select(y.fma(high, -product) + y * low, y.of(0.0))
    power = _exp(product)
    result = power.compare("olt", _INF).select(power.fma(rest, power), power)
    return signed_power(x, y, result)


# -- bells and factorials --------------------------------------------------------------------------------------------

# erf(x) / x in x², up to 1
_ERF = (
    *(1.1283791670955126, -0.37612638903183754, 0.1128379167095512),
    *(-0.02686617064512984, 0.0052239776254232985, -0.000854832702193483),
    *(0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06),
    *(-1.6364642158167616e-07, 1.4792401209404813e-08, -1.216456005728345e-09),
    *(8.709045129053106e-11, -4.230945824295338e-12),
)
# (1 + 2x) e^x² erfc(x) in (x - c) / (x + c), from 1 on
_CENTRE = 3.75
_ERFC = (
    *(1.2375126308378275, -0.14024059858554702, 0.003585415485463556),
    *(0.08227673849015088, -0.10880393014169704, 0.09230432116020396),
    *(-0.05869339859087042, 0.028362277421475724, -0.009746579542405136),
    *(0.0017556258310454593, 0.0002937135454265421, -0.00029015394796901874),
    *(5.164969465936055e-05, 2.2383624255481802e-05, -1.1446063332877937e-05),
    *(-9.714091591284555e-07, 1.7554393404000369e-06, -6.239932367730402e-08),
    *(-2.625720071176442e-07, 3.0805811527657647e-08, 3.932622866793865e-08),
    *(-9.058646695987483e-09, -3.43089671431006e-09, 1.1754782738710453e-09),
)
# ln Γ(x) / (x - 2) in x - 2, up to 1/2 on both sides
_LGAMMA = (
    *(0.42278433509846713, 0.3224670334241132, -0.06735230105319814),
    *(0.02058080842778457, -0.0073855510286681535, 0.002890510330738737),
    *(-0.0011927539120010226, 0.0005096695248853096, -0.00022315475074520367),
    *(9.945750909889392e-05, -4.4926351103833334e-05, 2.050726741605779e-05),
    *(-9.438458716242811e-06, 4.374374916915131e-06, -2.0449201467015115e-06),
    *(9.578663334114758e-07, -4.303558760359961e-07, 2.0304806751615227e-07),
    *(-1.3412819758517287e-07, 6.379047507619774e-08),
)
# B(2k) / 2k(2k - 1): Stirling's series in 1 / x²
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def _erfc_far(x: E) -> E:
    x = at_most(x, 28.0)
    square = x * x
    power = _exp(-square, -x.fma(x, -square))
    return horner((x - _CENTRE) / (x + _CENTRE), _ERFC) / (x * 2.0 + 1.0) * power


def _erf_near(x: E) -> E:
    return horner(x * x, _ERF) * x


def _erf(x: E) -> E:
    magnitude = abs(x)
    result = magnitude.compare("olt", 1.0).select(_erf_near(x), (1.0 - _erfc_far(magnitude)).copysign(x))
    return x.compare("uno", x).select(x, result)


def _erfc(x: E) -> E:
    magnitude = abs(x)
    far = _erfc_far(magnitude)
    far = x.compare("olt", 0.0).select(2.0 - far, far)
    return x.compare("uno", x).select(x, magnitude.compare("olt", 1.0).select((-horner(x * x, _ERF)).fma(x, 1.0), far))


def _lgamma(x: E) -> E:
    """Mirrored to the right of 1/2. From 10 on Stirling's series; below, shifted by whole numbers to around 2."""
    mirrored = x.compare("olt", 0.5)
    start = mirrored.select(1.0 - x, x)
    inverse = 1.0 / start
    series = horner(inverse * inverse, _STIRLING) * inverse + 0.5 * math.log(2 * math.pi)
    far = (start - 0.5) * (_log(start) - 1.0) + (series - 0.5)
    low = start.compare("olt", 1.5)
    z, shift = start, x.of(1.0)
    for _ in range(8):
        high = z.compare("oge", 2.5)
        z = high.select(z - 1.0, z)
        shift = high.select(shift * z, shift)
    steps = _log(low.select(start, shift))
    beside = low.select(start - 1.0, z - 2.0)
    near = horner(beside, _LGAMMA).fma(beside, low.select(-steps, steps))
    value = start.compare("olt", 10.0).select(near, far)
    fraction = abs(x - x.call("roundeven"))
    reflection = math.log(math.pi) - _log(abs(sin(fraction * math.pi)))
    value = mirrored.select(reflection - value, value)
    pole = (fraction.compare("oeq", 0.0) & x.compare("ole", 0.0)) | is_inf(x)
    return pole.select(_INF, value)


_SERIES: Mapping[str, FloatFunction] = {
    **{"exp": _exp, "exp2": _exp2, "expm1": _expm1, "sinh": _sinh, "cosh": _cosh, "tanh": _tanh},
    **{"log": _log, "log2": _log2, "log10": _log10, "log1p": _log1p, "pow": _pow},
    **{"asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "erf": _erf, "erfc": _erfc, "lgamma": _lgamma},
    **CIRCLES,
    **divisions(fmod_by_steps),
}


def _call(name: str, *args: E) -> E:
    return _SERIES[name](*args)


SERIES: Mapping[str, FloatFunction] = {**_SERIES, **composed(_call)}
