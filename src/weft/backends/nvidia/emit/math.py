"""Functions of single elements on NVIDIA GPUs: their own instructions where those are exact enough, else as on CPUs.

`ex2.approx` and `lg2.approx` are good to 2 ulp; what is lost before them, in scaling an argument, is carried along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, log2

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.math_double import SINGLE_THROUGH_DOUBLE, through_double
from weft.backends.llvm.math_expression import E, horner
from weft.backends.llvm.math_float import FloatFunction
from weft.backends.llvm.math_series import SERIES
from weft.backends.llvm.values import V
from weft.ir.types import DType

_LOG2_E = 1.4426950216293335  # rounded to f32
_LOG2_E_REST = log2(2.718281828459045) - _LOG2_E
_LN_2 = log(2)


def asm(b: Function, result: str, text: str, constraints: str, *args: V, pure: bool = True) -> V:
    """A line of PTX. One that is not `pure` stays where it is."""
    call = f'call {result} asm {"" if pure else "sideeffect "}"{text}", "{constraints}"({", ".join(map(str, args))})'
    if result == "void":
        b.do(call)
        return V("void", "")
    return b.emit(result, call)


def _approximate(instruction: str) -> FloatFunction:
    def emit(x: E) -> E:
        return E(x.b, asm(x.b, "float", f"{instruction} $0, $1;", "=f,f", x.v))

    return emit


_ex2 = _approximate("ex2.approx.f32")
_lg2 = _approximate("lg2.approx.f32")
_rsqrt = _approximate("rsqrt.approx.f32")
_rcp = _approximate("rcp.approx.f32")
# Zero where the result is below the normal numbers: without a test for those, one instruction.
_ex2_normal = _approximate("ex2.approx.ftz.f32")
_rcp_normal = _approximate("rcp.approx.ftz.f32")


def _exp(x: E, ex2: FloatFunction = _ex2) -> E:
    """2^(h + l) = 2^h + 2^h l ln 2, where h + l is x log2 e to twice a float's digits."""
    high = x * _LOG2_E
    low = x.fma(_LOG2_E_REST, x.fma(_LOG2_E, -high))
    power = ex2(high)
    exact = power.fma(low * _LN_2, power)
    # Where the power is inf, or x is, the rest is no number.
    return abs(high).compare("olt", 128.0).select(exact, power)


def rough_exp(b: Function, x: V) -> V:
    """Good to as many ulp as x has units: for what is summed or narrowed, where small powers count for little."""
    return _ex2_normal(E(b, x) * _LOG2_E).v


def rough_powers(b: Function, values: Sequence[V], base: V) -> tuple[list[V], V]:
    """The same of many, from one base: a multiplication and addition each, and a power.

    The base's product is rounded for that; the second result times a power is what it would be if it were not.
    """
    # Numbers beyond 2^31 are apart by nothing, or by so much that nothing is left: there, powers of two from the very
    # base do, and the rounding of a product would be more than a power can be of.
    start = E(b, base)
    factor = abs(start).compare("ogt", 2.0**31).select(start.of(1.0), start.of(_LOG2_E))
    shift = -(start * factor)
    rest = start.fma(factor, shift)
    return [_ex2_normal(E(b, value).fma(factor, shift)).v for value in values], _ex2_normal(-rest).v


def _rough_sigmoid(b: Function, x: V) -> V:
    """The same, for what is narrowed."""
    return _rcp_normal(_ex2_normal(E(b, x) * -_LOG2_E) + 1.0).v


def _rough_quotient(b: Function, x: V, y: V) -> V:
    """To 2 ulp, for what is narrowed."""
    return asm(b, "float", "div.full.f32 $0, $1, $2;", "=f,f,f", x, y)


def _rough_root(b: Function, x: V) -> V:
    """The same."""
    return asm(b, "float", "sqrt.approx.f32 $0, $1;", "=f,f", x)


def _rough_tanh(b: Function, value: V) -> V:
    """1 - 2 / (1 + e^2x) and, where that loses digits, x - x³ / 3: good to 2^-17, for what is narrowed."""
    x = E(b, value)
    large = _rcp_normal(_ex2_normal(x * (2 * _LOG2_E)) + 1.0).fma(-2.0, 1.0)
    small = (x * x).fma(-1 / 3, 1.0) * x
    return abs(x).compare("olt", 0.0625).select(small, large).v


ROUGH: Mapping[str, Callable[..., V]] = {
    "exp": rough_exp,
    "sigmoid": _rough_sigmoid,
    "tanh": _rough_tanh,
    "div": _rough_quotient,
    "sqrt": _rough_root,
}
"""Functions of f32 whose results are narrowed, or that Triton rounds as much."""


def _sigmoid(x: E) -> E:
    return _rcp(_exp(-x, _ex2_normal) + 1.0)


# (tanh(x) / x - 1) / x² in x², up to 0.62
_TANH = (-0.3333328664302826, 0.13331548869609833, -0.053749121725559235, 0.02067149057984352, -0.0057430146262049675)


def _tanh(x: E) -> E:
    """(1 - e^-2|x|) / (1 + e^-2|x|), and a series where the difference would lose digits."""
    magnitude = abs(x)
    power = _ex2_normal(magnitude * (-2 * _LOG2_E))
    large = ((1.0 - power) * _rcp_normal(power + 1.0)).copysign(x)
    square = x * x
    small = (horner(square, _TANH) * square).fma(x, x).copysign(x)  # -0 as well
    return magnitude.compare("olt", 0.6).select(small, large)


def power_of_two(b: Function, x: V) -> V:
    """2^x of a float, or zero where that is below the normal numbers."""
    return _ex2_normal(E(b, x)).v


def reciprocal(b: Function, x: V) -> V:
    """1 / x to 1 ulp, or zero where that is below the normal numbers."""
    return _rcp_normal(E(b, x)).v


def divide_all(b: Function, dividends: Sequence[V], divisor: V, exact: bool) -> list[V]:
    """Many f32 by one: a reciprocal for all, and for each a product and, for an `exact` quotient, what is left of it.

    A divisor whose reciprocal would be no normal number is scaled, and so are the quotients.
    """
    d = E(b, divisor)
    size = abs(d)
    scale = size.compare("ogt", 2.0**100).select(
        d.of(2.0**-64), size.compare("olt", 2.0**-100).select(2.0**64, d.of(1.0))
    )
    scaled = d * scale
    reciprocal = 1.0 / scaled
    scaled = reciprocal.compare("oeq", 0.0).select(0.0, scaled)  # of infinity: nothing is left, whatever is divided
    results: list[V] = []
    for dividend in dividends:
        a = E(b, dividend)
        quotient = a * reciprocal
        if not exact:
            results.append((quotient * scale).v)
            continue
        corrected = (-quotient).fma(scaled, a).fma(reciprocal, quotient)
        results.append((abs(quotient).compare("olt", float("inf")).select(corrected, quotient) * scale).v)
    return results


NVIDIA: Mapping[str, FloatFunction] = {
    "exp": _exp,
    "exp2": _ex2,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    **{name: through_double(SERIES[name]) for name in SINGLE_THROUGH_DOUBLE},
}


def emit_map(b: Function, name: str, args: Sequence[V], dtype: DType) -> V:
    """Apply a function to operands of type `dtype`, held as registers hold them."""
    table = SERIES if dtype.bits == 64 else NVIDIA
    if dtype.is_float and name in table:
        return table[name](*(E(b, arg) for arg in args)).v
    return emit_function(b, name, args, dtype)
