"""Trigonometric functions of f64 and their inverses as code of their own (see `math_series.py`).

As in `math_trig.py`, sin, cos and tan reduce to |r| ≤ π/4 by subtracting n·π/2 in three parts, and large arguments with
the digits of 2/π that matter for their exponents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import factorial

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math_expression import E, horner, when_any
from weft.backends.llvm.math_float import FloatFunction
from weft.backends.llvm.math_trig import circular, gather
from weft.backends.llvm.values import V

_INF = float("inf")
_MIN_NORMAL = 2.2250738585072014e-308
# π/2 in three parts, of which whole numbers of up to 20 bits times the first two are exact
_PI_2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_LARGE = 2.0**20
_SIN = tuple((-1) ** k / factorial(2 * k + 1) for k in range(1, 10))
_COS = tuple((-1) ** k / factorial(2 * k) for k in range(2, 11))
# The binary digits of 2/π after the point
_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424d"
    "d2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639"
    "835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f46"
    "3f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab",
    16,
)
_DIGITS, _LEADING = 1216, 64
# (asin x - x) / x³ in x², up to 1/2
_ASIN = (
    *(0.16666666666666669, 0.07499999999998433, 0.04464285714635543),
    *(0.030381944138531247, 0.02237217294214989, 0.017352392720869973),
    *(0.013971212973552933, 0.011479177415184906, 0.01032281435018578),
    *(0.005457506718640358, 0.01740087944269402, -0.014851887071247204),
    *(0.028757851367421566,),
)
# (atan x - x) / x³ in x², up to tan π/8
_ATAN = (
    *(-0.3333333333333333, 0.19999999999999804, -0.14285714285659828),
    *(0.11111111105155447, -0.09090908753500877, 0.07692296375032143),
    *(-0.06666424885738255, 0.05878928997834775, -0.05230454270650244),
    *(0.04551593220626549, -0.034570561981427744, 0.016285756855221028),
)


def _digits_table(b: Function) -> V:
    """A global of words of 64 binary digits of 2/π, with one of zeros before them."""
    name = "weft.two_over_pi.f64"
    count = (_DIGITS + _LEADING) // 64
    words = [(_TWO_OVER_PI >> (64 * (count - 1 - i))) & (2**64 - 1) for i in range(count)]
    text = ", ".join(f"i64 {word - (1 << 64) if word >= 1 << 63 else word}" for word in words)
    b.module.globals.setdefault(name, f"@{name} = private unnamed_addr constant [{count} x i64] [{text}], align 64")
    return V("ptr", f"@{name}")


def _reduced_large(x: E) -> tuple[E, E]:
    """n and r for |x| ≥ 2^20, by the method of Payne and Hanek, as in `math_trig`.

    |x| = m · 2^e with an integer m of 53 bits. Digits of 2/π before number e - 1 turn x the full circle and drop out;
    of the next 192, times m and modulo 2^192, the upper 128 are a fixed-point number of quarter turns.
    """
    bits = x.bits()
    biased = (bits >> 52) & 2047
    first = (biased.call("smax", biased.of(1043)) - 1043) + (1043 - 1075 - 1 + _LEADING - 1)
    table, index, shift = _digits_table(x.b), first >> 6, first & 63

    words = [gather(table, index + place, "i64") for place in range(4)]
    high, middle, low = (words[k].call("fshl", words[k + 1], shift) for k in range(3))
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    wide = m.to("zext", "i128")
    by_low, by_middle = low.to("zext", "i128") * wide, middle.to("zext", "i128") * wide
    rest = by_middle + (by_low >> 64)
    turns = high * m + (rest >> 64).to("trunc", "i64")
    below = rest.to("trunc", "i64")
    n = (turns + (1 << 61)) >> 62
    fraction = (turns - (n << 62)).to("sitofp", "double") * 2.0**-62
    r = (fraction + below.to("uitofp", "double") * 2.0**-126) * (math.pi / 2)
    negative = bits.compare("slt", 0)
    r = abs(x).compare("olt", _INF).select(r, r.of(float("nan")))
    return negative.select(0 - n, n), negative.select(-r, r)


def _quarters(x: E) -> tuple[E, E]:
    """n, of which only the last two bits count, and r = x - n·π/2."""
    large = abs(x).compare("uge", _LARGE)
    near = large.select(0.0, x)
    n = (near * (2 / math.pi)).call("roundeven")
    r = n.fma(-_PI_2[2], n.fma(-_PI_2[1], n.fma(-_PI_2[0], near)))
    n = n.to("fptosi", "i64")

    def all_lanes() -> list[E]:
        n_large, r_large = _reduced_large(x)
        return [large.select(n_large, n), large.select(r_large, r)]

    n, r = when_any(large, [n, r], all_lanes)
    return n, r


sin, cos, tan = circular(_quarters, _SIN, _COS)

_HALF_PI, _HALF_PI_LOW = math.pi / 2, 6.123233995736766e-17


def _asin_near(x: E) -> E:
    square = x * x
    return (horner(square, _ASIN) * square).fma(x, x)


def asin(x: E) -> E:
    """Beyond one half π/2 - 2 asin(s) with s = sqrt((1 - |x|) / 2), whose lost digits are added again."""
    magnitude = abs(x)
    square = (1.0 - magnitude) * 0.5
    s = square.call("sqrt")
    lost = (-s).fma(s, square) / (s + _MIN_NORMAL)
    far = (_HALF_PI - s * 2.0) - ((horner(square, _ASIN) * square).fma(s * 2.0, lost) - _HALF_PI_LOW)
    return magnitude.compare("ogt", 0.5).select(far, _asin_near(magnitude)).copysign(x)


def acos(x: E) -> E:
    magnitude = abs(x)
    far = _asin_near(((1.0 - magnitude) * 0.5).call("sqrt")) * 2.0
    far = x.compare("olt", 0.0).select(2 * _HALF_PI - (far - 2 * _HALF_PI_LOW), far)
    near = _HALF_PI - (_asin_near(x) - _HALF_PI_LOW)
    return magnitude.compare("ogt", 0.5).select(far, near)


def _atan_of_quotient(y: E, x: E) -> E:
    """atan(y / x) of two numbers that are not negative: by y, by x, or by (y - x) / (y + x) where these are alike."""
    steep = y.compare("ogt", x)
    small, large = steep.select(x, y), steep.select(y, x)
    turned = small.compare("ogt", large * (math.sqrt(2) - 1))
    quotient = turned.select(small - large, small) / turned.select(small + large, large)
    square = quotient * quotient
    angle = (horner(square, _ATAN) * square).fma(quotient, quotient)
    angle = turned.select(angle + (_HALF_PI_LOW * 0.5) + _HALF_PI * 0.5, angle)
    return steep.select(_HALF_PI - (angle - _HALF_PI_LOW), angle)


def atan(x: E) -> E:
    magnitude = abs(x)
    result = magnitude.compare("olt", _INF).select(_atan_of_quotient(magnitude, x.of(1.0)), x.of(_HALF_PI))
    return x.compare("uno", x).select(x, result.copysign(x))


def atan2(y: E, x: E) -> E:
    up, along = abs(y), abs(x)
    # Of infinities and of zeros only which one is larger counts, or that they are alike.
    endless = up.compare("oeq", _INF) | along.compare("oeq", _INF)
    up = endless.select(up.compare("oeq", _INF).select(up.of(1.0), 0.0), up)
    along = endless.select(along.compare("oeq", _INF).select(along.of(1.0), 0.0), along)
    # Scaled where sums would overflow, or quotients lose digits.
    greatest = up.call("maxnum", along)
    scale = greatest.compare("ogt", 2.0**1000).select(
        up.of(2.0**-100), greatest.compare("olt", 2.0**-900).select(2.0**100, up.of(1.0))
    )
    angle = _atan_of_quotient(up * scale, along * scale)
    angle = up.compare("oeq", 0.0).select(0.0, angle)
    angle = x.bits().compare("slt", 0).select(2 * _HALF_PI - (angle - 2 * _HALF_PI_LOW), angle)
    nothing = x.compare("uno", y)
    return nothing.select(x + y, angle.copysign(y))


CIRCLES: Mapping[str, FloatFunction] = {
    **{"sin": sin, "cos": cos, "tan": tan},
    **{"asin": asin, "acos": acos, "atan": atan, "atan2": atan2},
}
