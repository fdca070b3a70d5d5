"""Logarithms in f32 as vector code (see `math.py`): own polynomials, no branches, no calls.

x = 2^n · (1 + f) with 1 + f in [2/3, 4/3); the coefficients are minimax fits on that interval.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction

_TWO_THIRDS = 0x3F2AAAAB  # as bits
_MIN_NORMAL = 1.1754943508222875e-38
# ln 2 and log10 2 in two parts; n times the first is exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
_LOG10_2_HIGH, _LOG10_2_LOW = 0.301025390625, 4.605038981195214e-06
# (ln(1 + f) - f) / f²
_LOG = (
    *(-0.5, 0.3333321511745453, -0.24999798834323883, 0.20010456442832947, -0.1668044775724411),
    *(0.14005015790462494, -0.12184685468673706, 0.1398879587650299, -0.12890279293060303),
)
# log2(1 + f) / f
_LOG2 = (
    *(1.4426950216293335, -0.7213475108146667, 0.4809018671512604, -0.3606744706630707, 0.2884683609008789),
    *(-0.24049821496009827, 0.20510897040367126, -0.1778016984462738, 0.1884598731994629, -0.17735810577869415),
)
# log10(1 + f) / f
_LOG10 = (
    *(0.4342944920063019, -0.21714724600315094, 0.14476148784160614, -0.10857179015874863, 0.08703382313251495),
    *(-0.07248733937740326, 0.0589233823120594, -0.05222274735569954, 0.06942959129810333, -0.059288110584020615),
)


def _split(x: E) -> tuple[E, E]:
    """n as an integer, and f, of a normal number."""
    bits = x.bits()
    n = (bits - _TWO_THIRDS).op("ashr", 23)
    return n, (bits - (n << 23)).as_type("float") - 1.0


def _split_any(x: E) -> tuple[E, E]:
    """n as a float, and f, of any positive number: denormals are scaled up first."""
    denormal = x.compare("olt", _MIN_NORMAL)
    n, f = _split(denormal.select(x * 8388608.0, x))
    n = n.to("sitofp", "float")
    return denormal.select(n - 23.0, n), f


def with_limits(x: E, result: E) -> E:
    """inf and NaN stay, 0 gives -inf, a negative number NaN."""
    result = x.compare("olt", float("inf")).select(result, x)
    outside = x.compare("oeq", 0.0).select(float("-inf"), x.of(float("nan")))
    return x.compare("ugt", 0.0).select(result, outside)


def log(x: E) -> E:
    n, f = _split_any(x)
    result = horner(f, _LOG).fma(f * f, n.fma(_LN2_LOW, f))
    return with_limits(x, n.fma(_LN2_HIGH, result))


def log2(x: E) -> E:
    n, f = _split_any(x)
    return with_limits(x, horner(f, _LOG2).fma(f, n))


def log10(x: E) -> E:
    n, f = _split_any(x)
    result = horner(f, _LOG10).fma(f, n * _LOG10_2_LOW)
    return with_limits(x, n.fma(_LOG10_2_HIGH, result))


def log1p(x: E) -> E:
    """The logarithm of u = 1 + x, with what the sum lost put back into f."""
    u = x + 1.0
    n, f = _split(u)
    lost = x - (u - 1.0)  # exact, and 0 from 2^24 on
    f = lost.fma(((127 - n.call("smin", n.of(126))) << 23).as_type("float"), f)
    n = n.to("sitofp", "float")
    result = horner(f, _LOG).fma(f * f, n.fma(_LN2_LOW, f))
    result = n.fma(_LN2_HIGH, result).copysign(x)
    result = x.compare("olt", float("inf")).select(result, x)
    outside = x.compare("oeq", -1.0).select(float("-inf"), x.of(float("nan")))
    return x.compare("ugt", -1.0).select(result, outside)


LOGARITHMS: Mapping[str, FloatFunction] = {"log": log, "log2": log2, "log10": log10, "log1p": log1p}
