"""What instructions of PTX compute, said in the language's operations.

Instructions that approximate (`ex2.approx`) give what the language's functions give, which is at least as exact.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weft.frontends.triton.errors import KernelUnsupportedError, KernelValueError
from weft.frontends.triton.inline_ptx.assembly import Instruction
from weft.frontends.triton.language import elementary, types
from weft.frontends.triton.language.arithmetic import mapped, where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.promotion import constant
from weft.frontends.triton.language.types import dtype
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.libdevice import bits

TYPES: Mapping[str, dtype] = {
    "pred": types.int1,
    **{f"{kind}8": types.uint8 for kind in "bu"},
    **{f"{kind}16": types.uint16 for kind in "bu"},
    **{f"{kind}32": types.uint32 for kind in "bu"},
    **{f"{kind}64": types.uint64 for kind in "bu"},
    "s8": types.int8,
    "s16": types.int16,
    "s32": types.int32,
    "s64": types.int64,
    "f16": types.float16,
    "bf16": types.bfloat16,
    "f32": types.float32,
    "f64": types.float64,
}
PAIRS: Mapping[str, dtype] = {
    "f16x2": types.float16,
    "bf16x2": types.bfloat16,
    "e4m3x2": types.float8e4nv,
    "e5m2x2": types.float8e5,
}
"""Two numbers in one register, the first in its lower half."""

UNSIGNED = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}

Semantics: TypeAlias = Callable[[Instruction, dtype, Sequence[tensor]], tensor]


def number(text: str, element: dtype) -> float | int:
    """A literal as a number of a type: `0f3F800000` are the bits of a float, integers may be bits of one too."""
    lower = text.lower().removesuffix("u")
    if lower.startswith(("0f", "0d")):
        size, code, word = (8, "f", "I") if lower[1] == "f" else (16, "d", "Q")
        return struct.unpack(f"<{code}", struct.pack(f"<{word}", int(lower[2 : 2 + size], 16)))[0]
    if element.is_floating():
        return float(int(lower, 0)) if lower.startswith("0x") else float(text)
    if not lower.removeprefix("-").removeprefix("+").replace("0x", "").isalnum() or "." in lower:
        raise KernelValueError(f"{text} is no integer, and the instruction takes {element}")
    value = int(lower, 0) & ((1 << element.primitive_bitwidth) - 1)
    top = 1 << (element.primitive_bitwidth - 1)
    return value - 2 * top if element.is_int_signed() and value & top and not element.is_bool() else value


def _function(name: str) -> Semantics:
    return lambda op, element, args: mapped(name, *args)


def _saturating(semantics: Semantics) -> Semantics:
    """With `.sat` a float lies between 0 and 1, and a NaN becomes 0."""

    def apply(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
        result = semantics(op, element, args)
        if "sat" not in op.modifiers:
            return result
        if not element.is_floating():
            raise KernelUnsupportedError(f"{op} saturates integers, which is not supported in assembly")
        zero, one = (constant(edge, element, result.sides) for edge in (0.0, 1.0))
        return mapped("fmin", mapped("fmax", result, zero), one)

    return apply


def _product(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    a, b = args
    if element.is_floating() or "lo" in op.modifiers:
        return mapped("mul", a, b)
    if "hi" in op.modifiers:
        return bits.mulhi(a, b) if element.primitive_bitwidth >= 32 else _wide_product(a, b, high=True)
    return _wide_product(a, b, high=False)


def _wide_product(a: tensor, b: tensor, high: bool) -> tensor:
    width = a.dtype.primitive_bitwidth
    wide = {16: types.int32, 32: types.int64} if a.dtype.is_int_signed() else {16: types.uint32, 32: types.uint64}
    product = mapped("mul", *(converted(value, wide[width], None) for value in (a, b)))
    return converted(product >> width, a.dtype, None) if high else product


def _fused(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    a, b, c = args
    if element.is_floating():
        return elementary.fma(a, b, c)
    return mapped("add", _product(op, element, (a, b)), c)


def _quotient(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    return mapped("div" if element.is_floating() else "truncdiv", *args)


def _extreme(name: str) -> Semantics:
    def apply(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
        return mapped(name if "NaN" in op.modifiers or not element.is_floating() else f"f{name}", *args)

    return apply


def _reciprocal(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    return mapped("div", constant(1.0, element, args[0].sides), args[0])


def _negative(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    (x,) = args
    if element.is_floating():
        return mapped("neg", x)
    return mapped("sub", constant(0, element, x.sides), x)


def _shifted(name: str) -> Semantics:
    def apply(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
        value, count = args
        width = element.primitive_bitwidth
        last = mapped("min", count, constant(width, types.uint32, count.sides))
        near = mapped("min", last, constant(width - 1, types.uint32, count.sides))
        moved = mapped(name, value, converted(near, element, None))
        if element.is_int_signed() and name == "shr":
            return moved
        return where(last == width, constant(0, element, value.sides), moved)

    return apply


def _funnel(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    """The high (`l`) or low (`r`) word of two words that are shifted together."""
    low, high, count = args
    both = converted(low, types.uint64, None) | (converted(high, types.uint64, None) << 32)
    limit = constant(31 if "wrap" in op.modifiers else 32, types.uint32, count.sides)
    count = mapped("and", count, limit) if "wrap" in op.modifiers else mapped("min", count, limit)
    wide = converted(count, types.uint64, None)
    if "l" in op.modifiers:
        return converted((both << wide) >> 32, types.uint32, None)
    return converted(both >> wide, types.uint32, None)


def lop3(args: Sequence[tensor], table: int) -> tensor:
    """Any function of three bits, by its table: an or over the rows that are true."""
    result = constant(0, types.uint32, args[0].sides)
    for row in range(8):
        if table >> row & 1:
            a, b, c = (value if row >> place & 1 else ~value for value, place in zip(args, (2, 1, 0), strict=True))
            result = result | (a & b & c)
    return result


def _field(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    """A field of bits, at a place and of a length, signed if the type is."""
    value, place, length = args
    width = element.primitive_bitwidth
    word = converted(same_bits(value, UNSIGNED[width]), types.uint64, None)
    if element.is_int_signed():
        word = same_bits(converted(value, types.int64, None), types.uint64)
    byte = constant(255, types.uint32, place.sides)
    start, count = (converted(mapped("and", x, byte), types.uint64, None) for x in (place, length))
    most = constant(63, types.uint64, start.sides)
    moved = same_bits(word, types.int64 if element.is_int_signed() else types.uint64) >> same_bits(
        mapped("min", start, most), types.int64 if element.is_int_signed() else types.uint64
    )
    rest = constant(64, types.uint64, count.sides) - mapped("min", count, constant(width, types.uint64, count.sides))
    rest = same_bits(mapped("min", rest, most), moved.dtype)
    cut = (moved << rest) >> rest
    return where(count == 0, constant(0, element, value.sides), converted(cut, element, None))


def _permuted(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    """Four of the eight bytes of two words, each chosen by a digit; its sign eight times where the digit says so."""
    if len(op.modifiers) > 1:
        raise KernelUnsupportedError(f"{op} is not supported in assembly", hint="prmt.b32 chooses any bytes")
    low, high, chosen = args
    both = converted(low, types.uint64, None) | (converted(high, types.uint64, None) << 32)
    result = constant(0, types.uint32, low.sides)
    for place in range(4):
        digit = chosen >> (4 * place)
        byte = converted((both >> converted((digit & 7) * 8, types.uint64, None)) & 0xFF, types.uint32, None)
        signs = where(
            (byte & 0x80) != 0, constant(0xFF, types.uint32, byte.sides), constant(0, types.uint32, byte.sides)
        )
        result = result | (where((digit & 8) != 0, signs, byte) << (8 * place))
    return result


def _nth_bit(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    """The place of the nth bit that is set, from a base upwards, or downwards for a negative n; all ones without it."""
    mask, base, count = args
    upward, n = count > 0, mapped("abs", count)
    from_base = constant(0xFFFFFFFF, types.uint32) << base
    above, below = mask & from_base, mask & ~(from_base << 1)
    result = constant(0xFFFFFFFF, types.uint32)
    for place in range(32):
        bit = 1 << place
        passed = where(upward, above & (2 * bit - 1), below & (0x100000000 - bit))
        hit = (passed & bit) != 0
        found = hit & (converted(bits.popc(passed), types.int32, None) == n)
        result = where(found, constant(place, types.uint32), result)
    at_base = (mask >> base) & 1
    alone = where(at_base != 0, base, constant(0xFFFFFFFF, types.uint32))
    return where(count == 0, alone, result)


def _copied_sign(op: Instruction, element: dtype, args: Sequence[tensor]) -> tensor:
    sign, magnitude = args
    return mapped("copysign", magnitude, sign)


SEMANTICS: Mapping[str, Semantics] = {
    "add": _saturating(_function("add")),
    "sub": _saturating(_function("sub")),
    "mul": _saturating(_product),
    "fma": _saturating(_fused),
    "mad": _saturating(_fused),
    "div": _quotient,
    "rem": _function("fmod"),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "neg": _negative,
    "abs": _function("abs"),
    "and": _function("and"),
    "or": _function("or"),
    "xor": _function("xor"),
    "not": _function("not"),
    "shl": _shifted("shl"),
    "shr": _shifted("shr"),
    "shf": _funnel,
    "bfe": _field,
    "prmt": _permuted,
    "fns": _nth_bit,
    "popc": lambda op, element, args: converted(bits.popc(args[0]), types.uint32, None),
    "clz": lambda op, element, args: converted(bits.clz(args[0]), types.uint32, None),
    "brev": lambda op, element, args: bits.brev(args[0]),
    "rcp": _reciprocal,
    "sqrt": _function("sqrt"),
    "rsqrt": _function("rsqrt"),
    "ex2": _function("exp2"),
    "lg2": _function("log2"),
    "sin": _function("sin"),
    "cos": _function("cos"),
    "tanh": _function("tanh"),
    "copysign": _copied_sign,
    "mov": lambda op, element, args: args[0],
}
"""Instructions whose operands and result are of one type, but for counts of shifts and the like."""

COUNTS: Mapping[str, tuple[int, ...]] = {"shl": (1,), "shr": (1,), "shf": (2,), "bfe": (1, 2), "fns": (1,)}
"""Operands that are counts of 32 bits, whatever the instruction's type is."""

SIGNED_COUNTS: Mapping[str, tuple[int, ...]] = {"fns": (2,)}
"""Those that may be negative."""

COMPARISONS: Mapping[str, str] = {
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"},
}


def compared(comparison: str, a: tensor, b: tensor) -> tensor:
    """A predicate: the comparisons with a `u` are true of a NaN, the others, `ne` too, are not."""
    if a.dtype.is_floating() and comparison in ("num", "nan"):
        return _unordered(a, b) if comparison == "nan" else ~_unordered(a, b)
    if a.dtype.is_floating() and comparison.endswith("u") and comparison[:-1] in COMPARISONS:
        return mapped(comparison[:-1], a, b, result=types.int1) | _unordered(a, b)
    if comparison not in COMPARISONS:
        raise KernelUnsupportedError(f"setp.{comparison} is not supported in assembly")
    result = mapped(COMPARISONS[comparison], a, b, result=types.int1)
    return result & ~_unordered(a, b) if a.dtype.is_floating() and comparison == "ne" else result


def _unordered(a: tensor, b: tensor) -> tensor:
    """Where one of two is no number."""
    first, second = (mapped("isnan", value, result=types.int1) for value in (a, b))
    return first | second


_TO_INTEGER = {"rni": "round", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def convert(op: Instruction, target: dtype, value: tensor) -> tensor:
    """`cvt`: floats become integers in the direction that is named, and what is too large the nearest there is."""
    source, modifiers = value.dtype, set(op.modifiers)
    direction = next((function for name, function in _TO_INTEGER.items() if name in modifiers), None)
    if source.is_floating() and target.is_floating():
        if direction is not None:
            return converted(mapped(direction, value), target, None)
        if modifiers & {"rm", "rp"} or ("rz" in modifiers and target.primitive_bitwidth == 32):
            raise KernelUnsupportedError(f"{op} rounds in a direction that is not supported in assembly")
        narrower = target.primitive_bitwidth < source.primitive_bitwidth
        result = converted(value, target, "rtz" if "rz" in modifiers and narrower else None)
        return mapped("max", result, constant(0.0, target, result.sides)) if "relu" in modifiers else result
    if source.is_floating():
        if direction is None:
            raise KernelValueError(f"{op} has to say how it rounds: rni, rzi, rmi or rpi")
        return _clamped(mapped(direction, value), target)
    if "sat" in modifiers and not target.is_floating():
        wide = converted(value, types.int64, None)
        edges = (
            constant(edge, types.int64, wide.sides) for edge in (target.get_int_min_value(), target.get_int_max_value())
        )
        low, high = edges
        return converted(mapped("min", mapped("max", wide, low), high), target, None)
    return converted(value, target, None)


def _clamped(value: tensor, target: dtype) -> tensor:
    least, greatest = target.get_int_min_value(), target.get_int_max_value()
    wide = converted(value, types.float64, None)
    low, high = (constant(float(edge), types.float64, wide.sides) for edge in (least, greatest))
    inside = converted(mapped("min", mapped("max", wide, low), high), target, None)
    above = where(wide >= high, constant(greatest, target, wide.sides), inside)
    below = where(wide <= low, constant(least, target, wide.sides), above)
    return where(mapped("isnan", wide, result=types.int1), constant(0, target, wide.sides), below)
