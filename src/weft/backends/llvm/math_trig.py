"""Trigonometric functions and their inverses in f32 as vector code (see `math.py`).

sin, cos and tan reduce to |r| ≤ π/4 by subtracting n·π/2 in three parts. Where an argument is too large for that, one
branch for the whole vector reduces all lanes with the digits of 2/π that matter for their exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.math_expression import E, constant, horner, when_any
from weft.backends.llvm.math_float import FloatFunction
from weft.backends.llvm.values import V

_ROUNDING = 12582912.0  # 1.5 · 2^23, see math_exp
# π/2 in parts of 24 bits. Subtracting n times the first is exact for n < 2^18. All are positive, which keeps a -0.
_PI_2 = (1.570796251296997, 7.549789415861596e-08, 5.390302953474238e-15)
_LARGE = 2.0**18
# The first 208 binary digits of 2/π after the point
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE51
# (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ in r², up to r = 0.86
_SIN = (-0.1666666716337204, 0.008333370089530945, -0.00019848434021696448, 2.779835540422937e-06)
_COS = (0.041666630655527115, -0.001388663426041603, 2.4360568204429e-05)
# (asin x - x) / x³ in x², up to 0.5
_ASIN = (
    *(0.16666659712791443, 0.07500521838665009, 0.04451337456703186),
    *(0.03183908388018608, 0.014314992353320122, 0.03769628703594208),
)
# (atan x - x) / x³ in x², up to 1
_ATAN = (
    *(-0.33333298563957214, 0.1999852955341339, -0.14264017343521118, 0.10950901359319687, -0.08399415016174316),
    *(0.05788417160511017, -0.031100735068321228, 0.010871239937841892, -0.001783514628186822),
)


def _digits_table(b: Function) -> V:
    """A global: entry i holds 32 binary digits of 2/π, from the one of weight 2^(6 - i) on."""
    name = "weft.two_over_pi"
    entries, leading = 175, 7  # digits before the point are 0
    words = [(_TWO_OVER_PI >> (208 + leading - 32 - i)) & 0xFFFFFFFF for i in range(entries)]
    text = ", ".join(f"i32 {word - (1 << 32) if word >= 1 << 31 else word}" for word in words)
    b.module.globals.setdefault(name, f"@{name} = private unnamed_addr constant [{entries} x i32] [{text}], align 64")
    return V("ptr", f"@{name}")


def gather(table: V, index: E, element: str) -> E:
    """table[index] for each lane."""
    b, lanes = index.b, index.v.lanes
    if lanes == 1:
        return E(b, b.load(element, b.gep(table, index.v, element), int(element[1:]) // 8))
    pointers = b.emit(f"<{lanes} x ptr>", f"getelementptr {element}, {table}, {index.v}")
    type_ = index.like(element)
    every, none = constant(True, index.like("i1")), V(type_, "poison")
    name = f"llvm.masked.gather.{mangle(type_)}.{mangle(pointers.type)}"
    return E(b, b.call(name, type_, pointers, every, none))


def _reduced_large(x: E) -> tuple[E, E]:
    """n and r for |x| ≥ 2^18, by the method of Payne and Hanek.

    |x| = m · 2^e with an integer m < 2^24, so digits of 2/π whose weight is 4 or more after multiplication by 2^e turn
    x the full circle and drop out. Of the next 96, times m and modulo 4, the upper 64 digits are a fixed-point number
    of quarter turns.
    """
    bits = x.bits()
    biased = (bits >> 23) & 255
    index = (biased.call("smax", biased.of(145)) - 145).to("zext", "i64")
    table = _digits_table(x.b)
    mantissa = ((bits & 0x7FFFFF) | 0x800000).to("zext", "i64")
    high, middle, low = (gather(table, index + offset, "i32").to("zext", "i64") * mantissa for offset in (0, 32, 64))
    turns = (high << 32) + middle + (low >> 32)
    n = (turns + (1 << 61)) >> 62
    r = ((turns - (n << 62)).to("sitofp", "double") * (math.pi / 2 * 2.0**-62)).to("fptrunc", "float")
    n = n.to("trunc", "i32")
    negative = bits.compare("slt", 0)
    r = abs(x).compare("olt", float("inf")).select(r, r.of(float("nan")))
    return negative.select(0 - n, n), negative.select(-r, r)


def _reduced(x: E) -> tuple[E, E]:
    """n, of which only the last two bits count, and r = x - n·π/2."""
    rounding = x.fma(2 / math.pi, _ROUNDING)
    n = rounding - _ROUNDING
    r = n.fma(-_PI_2[2], n.fma(-_PI_2[1], n.fma(-_PI_2[0], x)))
    n = rounding.bits()
    large = abs(x).compare("ogt", _LARGE)

    def all_lanes() -> list[E]:
        n_large, r_large = _reduced_large(x)
        return [large.select(n_large, n), large.select(r_large, r)]

    n, r = when_any(large, [n, r], all_lanes)
    return n, r


def circular(
    reduced: Callable[[E], tuple[E, E]], sines: Sequence[float], cosines: Sequence[float]
) -> tuple[FloatFunction, FloatFunction, FloatFunction]:
    """sin, cos and tan, by a reduction to n and r and by series as those of `_SIN` and `_COS`."""

    def sine_and_cosine(r: E) -> tuple[E, E]:
        square = r * r
        sine = horner(square, sines).fma(r * square, r)
        cosine = horner(square, cosines).fma(square * square, square.fma(-0.5, 1.0))
        return sine, cosine

    def quadrant(n: E, r: E) -> E:
        """sin(r + n·π/2): the second bit of n is the sign."""
        sine, cosine = sine_and_cosine(r)
        value = (n & 1).compare("ne", 0).select(cosine, sine)
        return (value.bits() ^ ((n & 2) << {"float": 30, "double": 62}[r.element])).as_type(r.element)

    def sin(x: E) -> E:
        return x.compare("oeq", 0.0).select(x, quadrant(*reduced(x)))

    def cos(x: E) -> E:
        n, r = reduced(x)
        return quadrant(n + 1, r)

    def tan(x: E) -> E:
        n, r = reduced(x)
        sine, cosine = sine_and_cosine(r)
        odd = (n & 1).compare("ne", 0)
        return x.compare("oeq", 0.0).select(x, odd.select(-cosine, sine) / odd.select(sine, cosine))

    return sin, cos, tan


sin, cos, tan = circular(_reduced, _SIN, _COS)


# -- inverse functions -----------------------------------------------------------------------------------------------

_HALF_PI, _HALF_PI_LOW = 1.57079637050628662109375, -4.37113900018624283e-08
_PI, _PI_LOW = 2 * _HALF_PI, 2 * _HALF_PI_LOW


def _asin_reduced(x: E) -> tuple[E, E]:
    """Whether |x| > 1/2, and asin of |x|, or there of sqrt((1 - |x|) / 2), which is (π/2 - asin |x|) / 2."""
    magnitude = abs(x)
    large = magnitude.compare("ogt", 0.5)
    square = large.select(0.5 - magnitude * 0.5, magnitude * magnitude)
    root = large.select(square.call("sqrt"), magnitude)
    return large, horner(square, _ASIN).fma(root * square, root)


def asin(x: E) -> E:
    large, angle = _asin_reduced(x)
    return large.select(_HALF_PI - (angle * 2.0 - _HALF_PI_LOW), angle).copysign(x)


def acos(x: E) -> E:
    large, angle = _asin_reduced(x)
    twice = angle * 2.0
    outer = x.compare("olt", 0.0).select(_PI - (twice - _PI_LOW), twice)
    return large.select(outer, _HALF_PI - (angle.copysign(x) - _HALF_PI_LOW))


def _atan_up_to_one(x: E) -> E:
    square = x * x
    return horner(square, _ATAN).fma(x * square, x)


def atan(x: E) -> E:
    magnitude = abs(x)
    steep = magnitude.compare("ogt", 1.0)
    angle = _atan_up_to_one(steep.select(1.0 / magnitude, magnitude))
    return steep.select(_HALF_PI - (angle - _HALF_PI_LOW), angle).copysign(x)


def atan2(y: E, x: E) -> E:
    height, width = abs(y), abs(x)
    steep = height.compare("ogt", width)
    small, large = steep.select(width, height), steep.select(height, width)
    ratio = small / large
    # 0/0 counts as 0 and inf/inf as 1.
    ratio = large.compare("oeq", 0.0).select(0.0, small.compare("oeq", float("inf")).select(1.0, ratio))
    angle = _atan_up_to_one(ratio)
    # The angle is measured from the nearest axis: 0, π/2 or π.
    left = x.bits().compare("slt", 0)
    angle = (steep ^ left).select(-angle, angle)
    low = steep.select(_HALF_PI_LOW, left.select(_PI_LOW, x.of(0.0)))
    high = steep.select(_HALF_PI, left.select(_PI, x.of(0.0)))
    angle = high + (angle + low)
    return x.compare("uno", y).select(x + y, angle.copysign(y))


TRIGONOMETRY: Mapping[str, FloatFunction] = {
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
}
