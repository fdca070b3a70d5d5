"""Arithmetic, comparisons, rounding and remainders of floats as LLVM code (see `math.py`).

Operands are `float` or `double`. Results are the IEEE ones; `max` and `min` propagate NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import load_convert, store_convert
from weft.backends.llvm.math_expression import E, iterate
from weft.backends.llvm.values import V
from weft.ir.types import DType

FloatFunction = Callable[..., E]


def lanewise(name: str, *args: E) -> E:
    """Call a function of the C library lane by lane."""
    b, first = args[0].b, args[0].v
    if first.lanes == 1:
        return E(b, b.call(name, first.type, *(arg.v for arg in args)))
    result = V(first.type, "poison")
    for lane in range(first.lanes):
        scalars = [b.extract(arg.v, lane) for arg in args]
        result = b.insert(result, b.call(name, first.element, *scalars), lane)
    return E(b, result)


def widened(x: E) -> E:
    return x.to("fpext", "double")


def narrowed(x: E, element: str) -> E:
    return x.to("fptrunc", element)


def _arithmetic(opcode: str) -> FloatFunction:
    # `contract` lets LLVM fuse a multiplication into an addition: one rounding less.
    def emit(x: E, y: E) -> E:
        return E(x.b, x.b.binary(opcode, x.v, y.v, "contract"))

    return emit


def _compare(predicate: str) -> FloatFunction:
    def emit(x: E, y: E) -> E:
        return x.compare(predicate, y)

    return emit


def _intrinsic(name: str) -> FloatFunction:
    def emit(x: E, *others: E) -> E:
        return x.call(name, *others)

    return emit


def _extremum(intrinsic: str, predicate: str) -> FloatFunction:
    def emit(x: E, y: E) -> E:
        if not x.b.module.is_x86:
            return x.call(intrinsic, y)
        # maxps gives its second operand when one is NaN; LLVM's own expansion also orders -0 and +0, at twice the cost.
        # A constant NaN, since LLVM would merge `select(nan(x), x, select(x > y, x, y))` and lose the maxps.
        plain = x.compare(predicate, y).select(x, y)
        return is_nan(x).select(float("nan"), plain)

    return emit


def _extremum_of_numbers(intrinsic: str, predicate: str) -> FloatFunction:
    """NaN gives way to a number."""

    def emit(x: E, y: E) -> E:
        if not x.b.module.is_x86:
            return x.call(intrinsic, y)
        # What LLVM makes of the intrinsic, but for halves, for which it calls a library.
        return is_nan(y).select(x, x.compare(predicate, y).select(x, y))

    return emit


def at_most(x: E, limit: float) -> E:
    """The lesser of both; NaN stays NaN. One instruction on every target."""
    return x.compare("ogt", limit).select(limit, x) if x.b.module.is_x86 else x.call("minimum", x.of(limit))


def at_least(x: E, limit: float) -> E:
    """The greater of both; NaN stays NaN."""
    return x.compare("olt", limit).select(limit, x) if x.b.module.is_x86 else x.call("maximum", x.of(limit))


def _copysign(x: E, y: E) -> E:
    return x.copysign(y)


def _neg(x: E) -> E:
    return -x


def is_nan(x: E) -> E:
    return x.compare("uno", x)


def is_inf(x: E) -> E:
    return abs(x).compare("oeq", float("inf"))


def _fmod_in_double(x: E, y: E) -> E:
    """The remainder of two f32 held as doubles: exact.

    Each step takes off a multiple of |y| whose factor has 24 bits, so that the product and the difference are exact.
    One step does unless |x / y| > 2^24.
    """
    divisor = abs(y)
    # NaN operands, an infinite x and a zero y enter the loop as NaN, and leave it at once.
    start = (abs(x).compare("olt", float("inf")) & divisor.compare("ogt", 0.0)).select(abs(x), x.of(float("nan")))

    def going(state: Sequence[E]) -> E:
        return state[0].compare("oge", divisor)

    def step(state: Sequence[E]) -> list[E]:
        (rest,) = state
        quotient = (rest / divisor).call("trunc")
        factor = (quotient.bits() & -(1 << 29)).as_type("double")
        return [rest.compare("oge", divisor).select(rest - factor * divisor, rest)]

    (rest,) = iterate([start], going, step)
    return is_nan(divisor).select(divisor, rest).copysign(x)


def fmod_by_steps(x: E, y: E) -> E:
    """The remainder of two doubles without a library: exact.

    A step takes off a multiple, by less than 2^53, of |y| times a power of two: what is left is exact. One step does
    unless |x / y| > 2^53.
    """
    divisor = abs(y)
    start = (abs(x).compare("olt", float("inf")) & divisor.compare("ogt", 0.0)).select(abs(x), x.of(float("nan")))

    def going(state: Sequence[E]) -> E:
        return state[0].compare("oge", divisor)

    def step(state: Sequence[E]) -> list[E]:
        (rest,) = state
        far = (rest / divisor).compare("oge", 2.0**53)
        shift = far.select(_exponent(rest) - _exponent(divisor) - 52, 0)
        scaled = scaled_by_power(divisor, shift)
        left = (-(rest / scaled).call("trunc")).fma(scaled, rest)
        left = left.compare("olt", 0.0).select(left + scaled, left)
        return [rest.compare("oge", divisor).select(left, rest)]

    (rest,) = iterate([start], going, step)
    return is_nan(divisor).select(divisor, rest).copysign(x)


def _exponent(x: E) -> E:
    """The exponent of a positive double, with the bias that it is stored with."""
    denormal = x.compare("olt", 2.0**-1022)
    bits = denormal.select(x * 2.0**54, x).bits() >> 52
    return denormal.select(bits - 54, bits)


def power_of_two(n: E) -> E:
    """2^n as a double, of an integer from -1022 to 1023."""
    return ((n + 1023) << 52).as_type("double")


def scaled_by_power(x: E, n: E) -> E:
    """x · 2^n of a double, in two steps: 2^n alone may be too large or too small."""
    half = n.op("ashr", 1)
    return x * power_of_two(half) * power_of_two(n - half)


def divisions(fmod: FloatFunction) -> dict[str, FloatFunction]:
    """Divisions that round down, and remainders, by what gives the remainder of two doubles."""

    def remainder_of(x: E, y: E) -> E:
        if x.element == "double":
            return fmod(x, y)
        return narrowed(_fmod_in_double(widened(x), widened(y)), x.element)

    def remainder(x: E, y: E) -> E:
        """Python's: the sign of y."""
        rest = remainder_of(x, y)
        zero = rest.compare("oeq", 0.0)
        differs = rest.compare("olt", 0.0) ^ y.compare("olt", 0.0)
        return zero.select(rest.copysign(y), differs.select(rest + y, rest))

    def floored(x: E, y: E, whole: E) -> E:
        """The floor of x / y by a number next to it: from 2^50 on, the difference of x and its rest is rounded."""
        left = (-whole).fma(y, x)
        less = left.compare("one", 0.0) & (left.compare("olt", 0.0) ^ y.compare("olt", 0.0))
        exact = less.select(whole - 1.0, abs(left).compare("oge", abs(y)).select(whole + 1.0, whole))
        return (abs(whole).compare("oge", 2.0**50) & abs(whole).compare("olt", 2.0**53)).select(exact, whole)

    def floordiv(x: E, y: E) -> E:
        """Python's: the floor of the true quotient, not of the rounded one."""
        element = x.element
        if element == "float":
            x, y = widened(x), widened(y)
            rest = _fmod_in_double(x, y)
        else:
            rest = fmod(x, y)
        true = x / y
        whole = ((x - rest) / y).call("roundeven")
        differs = rest.compare("one", 0.0) & (rest.compare("olt", 0.0) ^ y.compare("olt", 0.0))
        whole = differs.select(whole - 1.0, whole)
        if element == "double" and "fma" not in x.b.module.lacks:
            whole = floored(x, y, whole)
        whole = whole.compare("oeq", 0.0).select(whole.copysign(true), whole)
        return narrowed(y.compare("oeq", 0.0).select(true, whole), element)

    return {"fmod": remainder_of, "remainder": remainder, "floordiv": floordiv}


def _truncdiv(x: E, y: E) -> E:
    return (x / y).call("trunc")


def _rsqrt(x: E) -> E:
    return 1.0 / x.call("sqrt")


def next_after(b: Function, args: Sequence[V], dtype: DType) -> V:
    """The neighbour of the first operand in the direction of the second, among the values of `dtype`."""
    x, y = E(b, args[0]), E(b, args[1])
    raw = E(b, store_convert(b, x.v, dtype))
    bits = raw.bits() if raw.is_float else raw
    # The bits of a float count its magnitude up, whatever the sign.
    away = x.compare("olt", y) ^ x.compare("olt", 0.0)
    moved = away.select(bits + 1, bits - 1)
    least = (E(b, store_convert(b, y.v, dtype)).as_type(bits.element) & (1 << (dtype.bits - 1))) | 1
    moved = x.compare("oeq", 0.0).select(least, moved).as_type(raw.element)
    result = E(b, load_convert(b, moved.v, dtype))
    result = x.compare("oeq", y).select(y, result)
    return x.compare("uno", y).select(x + y, result).v


FLOAT: Mapping[str, FloatFunction] = {
    "add": _arithmetic("fadd"),
    "sub": _arithmetic("fsub"),
    "mul": _arithmetic("fmul"),
    "div": _arithmetic("fdiv"),
    "neg": _neg,
    "abs": _intrinsic("fabs"),
    "max": _extremum("maximum", "ogt"),
    "min": _extremum("minimum", "olt"),
    "fmax": _extremum_of_numbers("maxnum", "ogt"),
    "fmin": _extremum_of_numbers("minnum", "olt"),
    "truncdiv": _truncdiv,
    **divisions(partial(lanewise, "fmod")),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": _rsqrt,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "copysign": _copysign,
    "eq": _compare("oeq"),
    "ne": _compare("une"),
    "lt": _compare("olt"),
    "le": _compare("ole"),
    "gt": _compare("ogt"),
    "ge": _compare("oge"),
    "isnan": is_nan,
    "isinf": is_inf,
}
