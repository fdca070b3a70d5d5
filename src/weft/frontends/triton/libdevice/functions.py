"""`tl.extra.libdevice`: the functions of NVIDIA's device library, by their names there, made of the language's own.

What works on bits is in `bits.py`, roundings other than to nearest in `directed.py`, Bessel's functions in
`bessel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from weft.frontends.triton.errors import KernelTypeError, KernelUnsupportedError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import bit_pattern, exactly, mapped, where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.elementary import fma as fma
from weft.frontends.triton.language.promotion import broadcast_all, constant, pair, to_tensor
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.libdevice import bessel, directed
from weft.frontends.triton.libdevice.bits import brev as brev
from weft.frontends.triton.libdevice.bits import byte_perm as byte_perm
from weft.frontends.triton.libdevice.bits import clz as clz
from weft.frontends.triton.libdevice.bits import double2hiint as double2hiint
from weft.frontends.triton.libdevice.bits import double2loint as double2loint
from weft.frontends.triton.libdevice.bits import double_as_longlong as double_as_longlong
from weft.frontends.triton.libdevice.bits import ffs as ffs
from weft.frontends.triton.libdevice.bits import float_as_int as float_as_int
from weft.frontends.triton.libdevice.bits import float_as_uint as float_as_uint
from weft.frontends.triton.libdevice.bits import hadd as hadd
from weft.frontends.triton.libdevice.bits import hiloint2double as hiloint2double
from weft.frontends.triton.libdevice.bits import int_as_float as int_as_float
from weft.frontends.triton.libdevice.bits import longlong_as_double as longlong_as_double
from weft.frontends.triton.libdevice.bits import mul24 as mul24
from weft.frontends.triton.libdevice.bits import mulhi as mulhi
from weft.frontends.triton.libdevice.bits import popc as popc
from weft.frontends.triton.libdevice.bits import rhadd as rhadd
from weft.frontends.triton.libdevice.bits import sad as sad
from weft.frontends.triton.libdevice.bits import uint_as_float as uint_as_float

Function = Callable[..., tensor]


def floating(x: Any) -> tensor:
    """An operand that must be a float."""
    value = to_tensor(x)
    if not value.dtype.is_floating():
        raise KernelTypeError(f"this function of libdevice takes floats, got {value}", hint="cast it: x.to(tl.float32)")
    return value


def number(value: float, beside: tensor) -> tensor:
    """A tile of one number, in the type and shape of another tile."""
    return constant(value, beside.dtype, beside.sides)


def _unary(name: str) -> Function:
    def apply(arg0: Any) -> tensor:
        return mapped(name, floating(arg0))

    return apply


def _binary(name: str) -> Function:
    def apply(arg0: Any, arg1: Any) -> tensor:
        return mapped(name, *pair(floating(arg0), floating(arg1)))

    return apply


floor, ceil, trunc, rint, nearbyint = (_unary(name) for name in ("floor", "ceil", "trunc", "round", "round"))
rsqrt, fast_expf, exp2, expm1 = (_unary(name) for name in ("rsqrt", "exp", "exp2", "expm1"))
log, log2, log10, log1p = (_unary(name) for name in ("log", "log2", "log10", "log1p"))
sin, cos, tan, asin, acos, atan = (_unary(name) for name in ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, tanh, asinh, acosh, atanh = (_unary(name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
erf, erfc, erfinv, lgamma = (_unary(name) for name in ("erf", "erfc", "erfinv", "lgamma"))
atan2, copysign, fmod, nextafter = (_binary(name) for name in ("atan2", "copysign", "fmod", "nextafter"))
fast_sinf, fast_cosf, fast_tanf, fast_tanhf = sin, cos, tan, tanh
fast_logf, fast_log2f, fast_log10f = log, log2, log10
j0, j1, y0, y1, jn, yn = bessel.j0, bessel.j1, bessel.y0, bessel.y1, bessel.jn, bessel.yn
cyl_bessel_i0, cyl_bessel_i1 = bessel.i0, bessel.i1


def exp(arg0: Any) -> tensor:
    return exactly(mapped("exp", floating(arg0)))


def sqrt(arg0: Any) -> tensor:
    """The square root, rounded to nearest."""
    return exactly(mapped("sqrt", floating(arg0)))


sqrt_rn, rsqrt_rn = sqrt, rsqrt


def abs(arg0: Any) -> tensor:
    """The absolute value, of integers too."""
    value = to_tensor(arg0)
    return value if value.dtype.is_int_unsigned() else mapped("abs", value)


def div_rn(arg0: Any, arg1: Any) -> tensor:
    return exactly(mapped("div", *pair(floating(arg0), floating(arg1))))


fast_dividef = div_rn


def rcp_rn(arg0: Any) -> tensor:
    value = floating(arg0)
    return exactly(mapped("div", number(1.0, value), value))


rcp64h = rcp_rn


def add_rn(arg0: Any, arg1: Any) -> tensor:
    return mapped("add", *pair(floating(arg0), floating(arg1)))


def sub_rn(arg0: Any, arg1: Any) -> tensor:
    return mapped("sub", *pair(floating(arg0), floating(arg1)))


def mul_rn(arg0: Any, arg1: Any) -> tensor:
    return mapped("mul", *pair(floating(arg0), floating(arg1)))


fma_rn = fma


def saturatef(arg0: Any) -> tensor:
    """At least 0 and at most 1; a NaN becomes 0."""
    value = floating(arg0)
    return mapped("fmin", mapped("fmax", value, number(0.0, value)), number(1.0, value))


def pow(arg0: Any, arg1: Any) -> tensor:
    """arg0 ** arg1; the exponent may be an integer."""
    base = floating(arg0)
    return mapped("pow", *pair(base, converted(to_tensor(arg1), base.dtype, None)))


fast_powf = pow


def exp10(arg0: Any) -> tensor:
    value = floating(arg0)
    return mapped("pow", number(10.0, value), value)


fast_exp10f = exp10


def round(arg0: Any) -> tensor:
    """To the nearest integer, halves away from zero."""
    value = floating(arg0)
    whole = mapped("trunc", value)
    rest = mapped("abs", value - whole)
    return where(rest >= number(0.5, value), whole + mapped("copysign", number(1.0, value), value), whole)


def llround(arg0: Any) -> tensor:
    return converted(round(arg0), types.int64, None)


def llrint(arg0: Any) -> tensor:
    return converted(rint(arg0), types.int64, None)


def remainder(arg0: Any, arg1: Any) -> tensor:
    """What is left of arg0 after the nearest multiple of arg1."""
    a, b = pair(floating(arg0), floating(arg1))
    size = mapped("abs", b)
    half = size * 0.5
    rest = mapped("fmod", mapped("abs", a), size + size)
    rest = where(rest > half, rest - size, rest)
    rest = where(rest >= half, rest - size, rest)
    return where(a < number(0.0, a), -rest, rest)


def fdim(arg0: Any, arg1: Any) -> tensor:
    """How much larger arg0 is, or 0."""
    a, b = pair(floating(arg0), floating(arg1))
    return where(a <= b, number(0.0, a), a - b)


def _norm(values: tuple[Any, ...]) -> tensor:
    """The length of a vector, without overflow on the way."""
    parts = [mapped("abs", value) for value in _meeting(values)]
    greatest = parts[0]
    for part in parts[1:]:
        greatest = mapped("max", greatest, part)
    plain = (greatest == number(0.0, greatest)) | mapped("isinf", greatest, result=types.int1)
    scale = where(plain, number(1.0, greatest), greatest)
    total = number(0.0, greatest)
    for part in parts:
        total = total + (part / scale) * (part / scale)
    return mapped("sqrt", total) * scale


def _meeting(values: tuple[Any, ...]) -> list[tensor]:
    first, *others = (floating(value) for value in values)
    met = [first]
    for other in others:
        _, other = pair(first, other)
        met.append(other)
    return broadcast_all(*met)


def hypot(arg0: Any, arg1: Any) -> tensor:
    return _norm((arg0, arg1))


def rhypot(arg0: Any, arg1: Any) -> tensor:
    return rcp_rn(_norm((arg0, arg1)))


def norm3d(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    return _norm((arg0, arg1, arg2))


def rnorm3d(arg0: Any, arg1: Any, arg2: Any) -> tensor:
    return rcp_rn(_norm((arg0, arg1, arg2)))


def norm4d(arg0: Any, arg1: Any, arg2: Any, arg3: Any) -> tensor:
    return _norm((arg0, arg1, arg2, arg3))


def rnorm4d(arg0: Any, arg1: Any, arg2: Any, arg3: Any) -> tensor:
    return rcp_rn(_norm((arg0, arg1, arg2, arg3)))


def cbrt(arg0: Any) -> tensor:
    """The cube root: a power, and a step of Newton's for its last digit."""
    value = floating(arg0)
    size = mapped("abs", value)
    root = mapped("pow", size, number(1 / 3, size))
    good = (size > number(0.0, size)) & (size < number(math.inf, size))
    safe = where(good, root, number(1.0, size))
    better = safe - (safe * safe * safe - size) / (safe * safe * 3.0)
    return mapped("copysign", where(good, better, root), value)


def rcbrt(arg0: Any) -> tensor:
    return rcp_rn(cbrt(arg0))


def _turns(arg0: Any) -> tensor:
    """π times what is left of a number after its even part."""
    value = floating(arg0)
    return (value - mapped("round", value * 0.5) * 2.0) * math.pi


def sinpi(arg0: Any) -> tensor:
    return mapped("sin", _turns(arg0))


def cospi(arg0: Any) -> tensor:
    return mapped("cos", _turns(arg0))


def normcdf(arg0: Any) -> tensor:
    """The distribution function of the normal distribution."""
    return mapped("erfc", floating(arg0) * -math.sqrt(0.5)) * 0.5


def erfcx(arg0: Any) -> tensor:
    """e**(x**2) * erfc(x): for large x by its series in 1/x**2."""
    value = floating(arg0)
    square = value * value
    near = exp(square) * mapped("erfc", value)
    inverse = 0.5 / square
    series = number(1.0, value)
    for factor in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = 1.0 - series * inverse * factor
    far = series / (value * math.sqrt(math.pi))
    return where(value > number(8.0, value), far, near)


def erfcinv(arg0: Any) -> tensor:
    """The x with erfc(x) == y: a first guess, and steps of Newton's with the digits that erfc has in its tail."""
    value = floating(arg0)
    upper = value > number(1.0, value)
    y = where(upper, 2.0 - value, value)
    inside = (y > number(0.0, y)) & (y <= number(1.0, y))
    safe = where(inside, y, number(1.0, y))
    logarithm = mapped("log", mapped("fmin", safe, number(0.25, safe)))
    tail = mapped("sqrt", -logarithm - 0.5 * mapped("log", -logarithm * math.pi))
    x = where(safe < number(0.25, safe), tail, mapped("erfinv", 1.0 - safe))
    for _ in range(4):
        slope = exp(-x * x) * (2 / math.sqrt(math.pi))
        step = (mapped("erfc", x) - safe) / slope
        x = x + step / (1.0 + x * step)
    edge = where(y == number(0.0, y), number(math.inf, y), number(math.nan, y))
    x = where(inside, x, edge)
    return where(upper, -x, x)


def normcdfinv(arg0: Any) -> tensor:
    """The quantiles of the normal distribution."""
    return erfcinv(floating(arg0) * 2.0) * -math.sqrt(2.0)


def tgamma(arg0: Any) -> tensor:
    """Γ(x), mirrored for negative x."""
    value = floating(arg0)
    wide = converted(value, types.float64, None)
    negative = wide < number(0.5, wide)
    positive = where(negative, 1.0 - wide, wide)
    gamma = exp(mapped("lgamma", positive))
    # At integers, where products of small numbers are exact, so is the result.
    gamma = where((positive == mapped("floor", positive)) & (gamma < 1e15), mapped("round", gamma), gamma)
    mirrored = math.pi / (sinpi(wide) * gamma)
    result = where(negative, mirrored, gamma)
    pole = negative & (wide == mapped("floor", wide)) & (wide < number(0.0, wide))
    result = where(pole, number(math.nan, wide), result)
    zero = wide == number(0.0, wide)
    result = where(zero, mapped("copysign", number(math.inf, wide), wide), result)
    return converted(result, value.dtype, None)


def ldexp(arg0: Any, arg1: Any) -> tensor:
    """arg0 * 2**arg1, in two steps where one would overflow."""
    value, power = floating(arg0), to_tensor(arg1)
    exponent = converted(power, value.dtype, None)
    first = mapped("floor", exponent * 0.5)
    a, b = pair(value, mapped("exp2", first))
    a, c = pair(a * b, mapped("exp2", exponent - first))
    return a * c


scalbn = ldexp


def logb(arg0: Any) -> tensor:
    """The exponent of a number, as a float."""
    value = floating(arg0)
    wide = converted(mapped("abs", value), types.float64, None)
    exponent = converted(same_bits(wide, types.int64) >> 52, types.float64, None) - 1023.0
    special = mapped("isinf", wide, result=types.int1) | mapped("isnan", wide, result=types.int1)
    exponent = where(special, wide, exponent)
    exponent = where(wide == number(0.0, wide), number(-math.inf, wide), exponent)
    return converted(exponent, value.dtype, None)


def ilogb(arg0: Any) -> tensor:
    """The exponent of a number, as an integer."""
    value = floating(arg0)
    exponent = logb(value)
    finite = finitef(value)
    known = where(finite.to(types.int1) & (value != number(0.0, value)), exponent, number(0.0, value))
    result = converted(known, types.int32, None)
    result = where(value == number(0.0, value), constant(-(1 << 31), types.int32), result)
    nan = mapped("isnan", value, result=types.int1)
    infinite = mapped("isinf", value, result=types.int1)
    result = where(infinite, constant((1 << 31) - 1, types.int32), result)
    return where(nan, constant(-(1 << 31), types.int32), result)


def _predicate(test: Callable[[tensor], tensor]) -> Function:
    def apply(arg0: Any) -> tensor:
        return converted(test(floating(arg0)), types.int32, None)

    return apply


isnan = _predicate(lambda x: mapped("isnan", x, result=types.int1))
isinf = _predicate(lambda x: mapped("isinf", x, result=types.int1))
finitef = _predicate(lambda x: mapped("abs", x) < number(math.inf, x))
isfinited = finitef


def signbit(arg0: Any) -> tensor:
    """1 for numbers with a minus sign."""
    value = floating(arg0)
    return converted(bit_pattern(value, signed=True) < 0, types.int32, None)


def by_symbol(symbol: str) -> Function:
    """The function that the library has under a symbol: `__nv_expf`, `__nv_exp`, `__nv_double2int_rn`."""
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("ll"), f"{name}f"):
        function: Any = globals().get(candidate)
        if callable(function) and not candidate.startswith("_"):
            return cast(Function, function)
    raise KernelUnsupportedError(
        f"the function {symbol} of a device library is not known here", hint="use tl.math, or write it out"
    )


globals().update(directed.variants(add_rn, sub_rn, mul_rn, div_rn, rcp_rn, sqrt_rn, fma))
