"""The power function in f32 as vector code (see `math.py`).

x^y = 2^(y log2 x) needs log2 x to 32 bits. So both halves are computed in double, with polynomials no longer than that
takes; splitting x, the one division and the special cases stay in single precision, where a vector has twice the lanes.
"""

from __future__ import annotations

from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import at_least, at_most, is_inf, narrowed, widened

_ROUNDING = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to an integer, which is left in the low bits
_SQRT_HALF = 0x3F3504F3  # as bits
_MIN_NORMAL = 1.1754943508222875e-38
# log2((1 + s) / (1 - s)) / s in s², for the quotient between sqrt(1/2) and sqrt(2)
_LOG2 = (2.8853900817902143, 0.9617966731679897, 0.5770836203317224, 0.4116704797106755, 0.3407735147135813)
# (2^r - 1) / r for |r| ≤ 1/2
_EXP2 = (
    *(0.6931472028110164, 0.24022637317329387, 0.05550329715194919),
    *(0.009618839689033374, 0.0013401430267956263, 0.00015412642628322636),
)


def _log2(magnitude: E) -> E:
    """log2 of a float that is not negative, as a double."""
    denormal = magnitude.compare("olt", _MIN_NORMAL)
    bits = denormal.select(magnitude * 8388608.0, magnitude).bits()
    n = (bits - _SQRT_HALF).op("ashr", 23)
    m = (bits - (n << 23)).as_type("float")
    n = n.to("sitofp", "float")
    n = denormal.select(n - 23.0, n)
    # As the exponent, 0, inf and NaN give -inf, inf and NaN.
    n = magnitude.compare("olt", float("inf")).select(n, magnitude)
    n = magnitude.compare("oeq", 0.0).select(float("-inf"), n)
    # s = (m - 1) / (m + 1): dividing in single precision and correcting once is good to 46 bits.
    f, reciprocal = widened(m - 1.0), widened(1.0 / (m + 1.0))
    s = f * reciprocal
    s = (-s).fma(f + 2.0, f).fma(reciprocal, s)
    return horner(s * s, _LOG2).fma(s, widened(n))


def _exp2(x: E) -> E:
    """2^x of a double as a float."""
    x = at_most(at_least(x, -200.0), 200.0)
    rounding = x + _ROUNDING
    fraction = horner(x - (rounding - _ROUNDING), (1.0, *_EXP2))
    return narrowed((fraction.bits() + (rounding.bits() << 52)).as_type("double"), "float")


def power(x: E, y: E) -> E:
    """By the rules of C's `pow` for signs, zeros, infinities and NaN."""
    return signed_power(x, y, _exp2(widened(y) * _log2(abs(x))))


def signed_power(x: E, y: E, result: E) -> E:
    """x^y of |x|^y, by the same rules."""
    magnitude = abs(x)
    integer = y.call("trunc").compare("oeq", y)
    half = y * 0.5
    odd = integer & half.call("trunc").compare("une", half)
    result = (x.bits().compare("slt", 0) & odd).select(-result, result)
    root_of_negative = x.compare("olt", 0.0) & magnitude.compare("olt", float("inf")) & (integer ^ True)
    result = root_of_negative.select(float("nan"), result)
    # Powers of 1 and powers by 0 are 1, even where the other is NaN; so are those of -1 by ±inf, an even number.
    one = x.compare("oeq", 1.0) | y.compare("oeq", 0.0) | (x.compare("oeq", -1.0) & is_inf(y))
    return one.select(1.0, result)
