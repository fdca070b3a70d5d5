"""Integer and boolean functions as LLVM code (see `math.py`).

Nothing here may trap: `idiv` by zero or of the smallest integer by -1 raises SIGFPE on x86 and kills the process, and a
shift by the width or more is undefined. Dividing by zero gives 0, as NumPy does; shifts behave as if the width were
unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.backends.llvm.builder import Function
from weft.backends.llvm.math_expression import E, constant, iterate
from weft.backends.llvm.math_quotient import Formula, divided, in_halves_where_they_fit
from weft.backends.llvm.values import V
from weft.ir.types import DType

IntegerFunction = Callable[[Function, Sequence[V], DType], V]


def _opcode(name: str) -> IntegerFunction:
    return lambda b, args, dtype: b.binary(name, args[0], args[1])


def _compare(predicate: str) -> IntegerFunction:
    def emit(b: Function, args: Sequence[V], dtype: DType) -> V:
        sign = "" if predicate in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
        return b.icmp(sign + predicate, args[0], args[1])

    return emit


def _extremum(name: str) -> IntegerFunction:
    return lambda b, args, dtype: b.intrinsic(("s" if dtype.kind == "int" else "u") + name, args[0], args[1])


def _safe_divisor(x: E, y: E, dtype: DType) -> E:
    """The divisor, or 1 where the division would trap; that is right for MIN / -1, which wraps to MIN."""
    trap = y.compare("eq", 0)
    if dtype.kind == "int":
        trap |= x.compare("eq", -(1 << (dtype.bits - 1))) & y.compare("eq", -1)
    return trap.select(1, y)


def _quotient(x: E, y: E, dtype: DType) -> tuple[E, E]:
    """Truncated quotient (0 where y is 0) and its remainder."""
    divisor = _safe_divisor(x, y, dtype)
    quotient = divided(x, divisor, dtype)
    remainder = x - quotient * divisor
    return y.compare("eq", 0).select(0, quotient), remainder


def _rounds_down(remainder: E, y: E) -> E:
    """Whether floor division differs from truncation: a remainder whose sign is not the divisor's."""
    return remainder.compare("ne", 0) & (remainder ^ y).compare("slt", 0)


def _truncdiv(x: E, y: E, dtype: DType) -> E:
    return _quotient(x, y, dtype)[0]


def _fmod(x: E, y: E, dtype: DType) -> E:
    return _quotient(x, y, dtype)[1]


def _floordiv(x: E, y: E, dtype: DType) -> E:
    quotient, remainder = _quotient(x, y, dtype)
    if dtype.kind == "uint":
        return quotient
    return _rounds_down(remainder, y).select(quotient - 1, quotient)


def _remainder(x: E, y: E, dtype: DType) -> E:
    _, remainder = _quotient(x, y, dtype)
    if dtype.kind == "uint":
        return remainder
    return _rounds_down(remainder, y).select(remainder + y, remainder)


def _division(name: str, formula: Formula) -> IntegerFunction:
    return lambda b, args, dtype: in_halves_where_they_fit(b, name, args, dtype, formula).v


def _shl(b: Function, args: Sequence[V], dtype: DType) -> V:
    x, amount = E(b, args[0]), E(b, args[1])
    inside = amount.compare("ult", dtype.bits)
    return inside.select(x << inside.select(amount, 0), 0).v


def _shr(b: Function, args: Sequence[V], dtype: DType) -> V:
    x, amount = E(b, args[0]), E(b, args[1])
    inside = amount.compare("ult", dtype.bits)
    if dtype.kind == "int":
        return x.op("ashr", inside.select(amount, dtype.bits - 1)).v
    return inside.select(x >> inside.select(amount, 0), 0).v


def _abs(b: Function, args: Sequence[V], dtype: DType) -> V:
    if dtype.kind != "int":
        return args[0]
    return b.intrinsic("abs", args[0], V("i1", "false"))


def _neg(b: Function, args: Sequence[V], dtype: DType) -> V:
    return b.binary("sub", constant(0, args[0].type), args[0])


def _not(b: Function, args: Sequence[V], dtype: DType) -> V:
    return b.binary("xor", args[0], constant(True if dtype.kind == "bool" else -1, args[0].type))


def _pow(b: Function, args: Sequence[V], dtype: DType) -> V:
    """By squaring, modulo 2^bits. A negative exponent gives the truncated reciprocal: 0, but for bases 1 and -1."""
    base, exponent = E(b, args[0]), E(b, args[1])
    if dtype.kind == "int":
        # ±1 to the power of -n is ±1 to the power of n's parity; any other base becomes 0 to the power of 1.
        negative = exponent.compare("slt", 0)
        unit = base.compare("eq", 1) | base.compare("eq", -1)
        base = (negative & (unit ^ True)).select(0, base)
        exponent = negative.select((exponent & 1) | unit.select(0, exponent.of(1)), exponent)

    def going(state: Sequence[E]) -> E:
        return state[2].compare("ne", 0)

    def step(state: Sequence[E]) -> tuple[E, ...]:
        result, square, left = state
        return (left & 1).compare("ne", 0).select(result * square, result), square * square, left >> 1

    return iterate((base.of(1), base, exponent), going, step)[0].v


_BITS: Mapping[str, IntegerFunction] = {
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _opcode("and"),
    "or": _opcode("or"),
    "xor": _opcode("xor"),
    "not": _not,
    "shl": _shl,
    "shr": _shr,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "fmax": _extremum("max"),
    "fmin": _extremum("min"),
}

INTEGER: Mapping[str, IntegerFunction] = {
    **_BITS,
    "add": _opcode("add"),
    "sub": _opcode("sub"),
    "mul": _opcode("mul"),
    "neg": _neg,
    "abs": _abs,
    "truncdiv": _division("truncdiv", _truncdiv),
    "floordiv": _division("floordiv", _floordiv),
    "remainder": _division("remainder", _remainder),
    "fmod": _division("fmod", _fmod),
    "pow": _pow,
}

# A boolean is an unsigned integer of one bit.
BOOLEAN: Mapping[str, IntegerFunction] = _BITS
