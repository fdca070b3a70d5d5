"""Conversions between element types as LLVM code, and between their forms in memory and in registers.

A register holds f16, bf16 and the 8-bit floats as a `float` whose value the narrow type has; integers and booleans as
i4 ... i64 and i1. Memory holds them as i16 or i8 (`builder.memory_type`). bf16 is done with integer shifts, f8 through
the bits of a half, and f64 never goes to half directly: those conversions would be library calls on some x86.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.values import V, const, memory_type, vector
from weft.errors import DTypeError
from weft.ir.types import DType


@dataclass(frozen=True)
class _Narrow:
    """A float format of less than 32 bits."""

    precision: int  # bits of the significand, with the hidden one
    min_exponent: int  # of the least normal number
    overflow: float  # what rounds to no finite number: everything above this


_NARROW = {
    "f16": _Narrow(11, -14, 65519.99609375),
    "bf16": _Narrow(8, -126, float("inf")),
    "f8E4M3FN": _Narrow(4, -6, 464.0),
    "f8E5M2": _Narrow(3, -14, 61439.99609375),
}
_LARGEST = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "f8E4M3FN": 448.0, "f8E5M2": 57344.0}
_CONTAINED = {("f8E4M3FN", "f16"), ("f8E4M3FN", "bf16"), ("f8E5M2", "f16"), ("f8E5M2", "bf16")}


def register_type(dtype: DType) -> str:
    """The LLVM type that holds an element in registers."""
    if dtype.kind == "complex":
        raise DTypeError(f"there is no code for {dtype}", hint="split it into real and imaginary parts")
    if dtype.is_float:
        return "double" if dtype.bits == 64 else "float"
    return f"i{dtype.bits}"


# -- memory and registers --------------------------------------------------------------------------------------------


def load_convert(b: Function, raw: V, dtype: DType) -> V:
    """What was loaded (`memory_type`) as registers hold it."""
    value = E(b, raw)
    match dtype.name:
        case "f16":
            return _from_half(value).v
        case "bf16":
            return (value.to("zext", "i32") << 16).as_type("float").v
        case "f8E5M2":
            return _from_half(value.to("zext", "i16") << 8).v
        case "f8E4M3FN":
            # The exponent of a half has one bit more and a bias larger by 8; denormals come out right too.
            magnitude = value & 0x7F
            wide = _from_half(magnitude.to("zext", "i16") << 7) * 256.0
            wide = magnitude.compare("eq", 0x7F).select(float("nan"), wide)
            sign = (value & -0x80).to("zext", "i32") << 24
            return (wide.bits() | sign).as_type("float").v
        case "i1":
            return value.compare("ne", 0).v
        case _:
            return b.convert("trunc", raw, register_type(dtype)) if dtype.bits < 8 else raw


def load_as(b: Function, raw: V, memory: DType, dtype: DType) -> V:
    """What was loaded of one type as registers hold another, which has all its values."""
    value = load_convert(b, raw, memory)
    return value if value.element == register_type(dtype) else emit_cast(b, value, memory, dtype)


def store_convert(b: Function, value: V, dtype: DType) -> V:
    """A register's value as memory holds it; a float that the narrow type does not have is rounded."""
    x = E(b, value)
    match dtype.name:
        case "f16":
            return _to_half(x).v
        case "bf16":
            return (_rounded_bf16(x) >> 16).to("trunc", "i16").v
        case "f8E5M2":
            return (_to_half(_rounded(x, dtype.name)) >> 8).to("trunc", "i8").v
        case "f8E4M3FN":
            rounded = _rounded(x, dtype.name)
            scaled = abs(rounded) * (1 / 256)
            magnitude = (_to_half(scaled) >> 7).to("trunc", "i8")
            magnitude = rounded.compare("uno", rounded).select(0x7F, magnitude)
            return (magnitude | (rounded.bits() >> 24).to("trunc", "i8") & -0x80).v
        case _:
            if dtype.is_float or dtype.bits >= 8:
                return value
            return b.convert("sext" if dtype.kind == "int" else "zext", value, memory_type(dtype))


# -- halves ----------------------------------------------------------------------------------------------------------


def _from_half(bits: E) -> E:
    """The bits of halves (i16) as floats."""
    b = bits.b
    if "f16" not in b.module.lacks:
        if bits.v.lanes == 1 and b.module.is_x86:
            return E(b, b.call("llvm.convert.from.fp16.f32", "float", bits.v))
        return bits.as_type("half").to("fpext", "float")
    magnitude = (bits & 0x7FFF).to("zext", "i32") << 13
    exponent = magnitude & (0x1F << 23)
    normal = magnitude + ((127 - 15) << 23)
    special = normal + ((128 - 16) << 23)
    denormal = (normal + (1 << 23)).as_type("float") - 2.0**-14
    wide = exponent.compare("eq", 0).select(denormal.bits(), exponent.compare("eq", 0x1F << 23).select(special, normal))
    return (wide | (bits & -0x8000).to("zext", "i32") << 16).as_type("float")


def _to_half(x: E) -> E:
    """Floats as the bits of halves (i16), rounded to nearest, ties to even."""
    b = x.b
    if "f16" not in b.module.lacks:
        if x.v.lanes == 1 and b.module.is_x86:
            # LLVM rounds a double that became a float to half at once, which is a library call.
            alone = b.insert(const(0, "<4 x float>"), x.v, 0)
            nearest = V("i32", "0")
            return E(b, b.extract(b.call("llvm.x86.vcvtps2ph.128", "<8 x i16>", alone, nearest), 0))
        return x.to("fptrunc", "half").bits()
    magnitude = abs(_rounded(x, "f16"))
    bits = magnitude.bits()
    normal = (bits - ((127 - 15) << 23)) >> 13
    denormal = (magnitude + 0.5).bits() - (126 << 23)  # 0.5 counts in quanta of the denormals
    narrow = magnitude.compare("olt", 2.0**-14).select(denormal, normal)
    narrow = magnitude.compare("olt", float("inf")).select(narrow, 0x7C00)
    narrow = x.compare("uno", x).select(0x7E00, narrow)
    return (narrow | ((x.bits() >> 16) & 0x8000)).to("trunc", "i16")


# -- rounding to narrow floats ---------------------------------------------------------------------------------------


def round_to(b: Function, value: V, dtype: DType) -> V:
    """A `float` rounded to the nearest value of a narrow float type, ties to even; it stays a `float`.

    What is too large becomes inf, or NaN where the type has no inf.
    """
    x = E(b, value)
    match dtype.name:
        case "f32" | "f64":
            return value
        case "f16":
            return _rounded(x, "f16").v if "f16" in b.module.lacks else _from_half(_to_half(x)).v
        case "bf16":
            return (_rounded_bf16(x) & -(1 << 16)).as_type("float").v
        case _:
            return _rounded(x, dtype.name).v


def _rounded_bf16(x: E) -> E:
    """The bits of a float whose upper half is the nearest bf16; the lower half is arbitrary."""
    bits = x.bits()
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return x.compare("uno", x).select(bits | (1 << 22), rounded)


def _rounded(x: E, name: str) -> E:
    """A float rounded to the nearest value of a narrow float type; it stays a float."""
    form = _NARROW[name]
    dropped = 24 - form.precision
    magnitude = abs(x)
    bits = magnitude.bits()
    normal = ((bits + ((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1)) & -(1 << dropped)).as_type("float")
    # Denormals are multiples of one quantum: adding 2^23 quanta leaves just those digits.
    shift = 2.0 ** (23 + form.min_exponent - form.precision + 1)
    small = (magnitude + shift) - shift
    rounded = magnitude.compare("olt", 2.0**form.min_exponent).select(small, normal)
    beyond = float("nan") if name == "f8E4M3FN" else float("inf")
    rounded = magnitude.compare("ogt", form.overflow).select(beyond, rounded)
    return x.compare("uno", x).select(x, rounded.copysign(x))


def truncate_to(b: Function, value: V, dtype: DType) -> V:
    """A `float` or `double` rounded towards zero to a narrower float type; what is too large becomes the largest."""
    x = E(b, value)
    if x.element == "double":
        near = x.to("fptrunc", "float")
        above = abs(near.to("fpext", "double")).compare("ogt", abs(x))
        x = above.select((near.bits() - 1).as_type("float"), near)
    if dtype.bits >= 32:
        return x.v
    form = _NARROW[dtype.name]
    dropped = 24 - form.precision
    magnitude = abs(x)
    normal = (magnitude.bits() & -(1 << dropped)).as_type("float")
    shorter = normal
    if form.min_exponent > -126:  # otherwise its denormals are those of a float, cut off
        quantum = 2.0 ** (form.min_exponent - form.precision + 1)
        small = (magnitude * (1 / quantum)).call("trunc") * quantum
        shorter = magnitude.compare("olt", 2.0**form.min_exponent).select(small, normal)
    largest = _LARGEST[dtype.name]
    finite = magnitude.compare("olt", float("inf"))
    shorter = (shorter.compare("ogt", largest) & finite).select(largest, shorter)
    return x.compare("uno", x).select(x, shorter.copysign(x)).v


def _to_odd(x: E) -> E:
    """A double as a float, towards zero with the last bit set if inexact: rounding that again rounds but once."""
    near = x.to("fptrunc", "float")
    back = near.to("fpext", "double")
    above = abs(back).compare("ogt", abs(x))
    bits = near.bits()
    inexact = back.compare("one", x)
    toward_zero = above.select(bits - 1, bits)
    return inexact.select(toward_zero | 1, bits).as_type("float")


# -- casts -----------------------------------------------------------------------------------------------------------


def emit_cast(b: Function, value: V, source: DType, target: DType) -> V:
    """Convert a register's value.

    Floats go to integers towards zero, NaN to 0; to booleans by `!= 0`. Integers wrap around. So do those of 8 bits,
    and of 16 with a sign, that floats become, as in torch: they are the last bits of one of 32, bytes without a sign of
    one of 64. Other floats that are too large saturate: what torch makes of them depends on where they stand.
    """
    if source == target:
        return value
    x, element = E(b, value), register_type(target)
    if target.kind == "bool":
        return x.compare("une" if source.is_float else "ne", 0).v
    if source.is_float:
        return _cast_float(x, source, target) if target.is_float else _float_to_integer(x, target)
    signed = source.kind == "int"
    if target.is_float:
        wide = b.convert("sitofp" if signed else "uitofp", value, element)
        digits = source.bits - 1 if signed else source.bits
        exact = target.bits >= 32 or digits <= _NARROW[target.name].precision
        return wide if exact else round_to(b, wide, target)
    if target.bits <= source.bits:
        return b.convert("trunc", value, element)
    return b.convert("sext" if signed else "zext", value, element)


def _cast_float(x: E, source: DType, target: DType) -> V:
    if target.bits >= 32:
        return x.to("fpext" if target.bits > source.bits else "fptrunc", register_type(target)).v
    if (source.name, target.name) in _CONTAINED:
        return x.v
    return round_to(x.b, (_to_odd(x) if source.bits == 64 else x).v, target)


def _float_to_integer(x: E, target: DType) -> V:
    if target.name in ("i8", "i16"):
        return _saturated(x, "fptosi", "i32").to("trunc", register_type(target)).v
    if target.name != "ui8":
        return _saturated(x, "fptosi" if target.kind == "int" else "fptoui", register_type(target)).v
    if x.element == "double":
        return _saturated(x, "fptosi", "i64").to("trunc", "i8").v
    # 32 bits will do: the last byte of a float between 2³¹ and 2⁶³ is 0, as its 24 digits end before.
    whole, beyond = _saturated(x, "fptosi", "i32"), x.compare("oge", 2.0**31) & x.compare("olt", 2.0**63)
    return beyond.select(0, whole).to("trunc", "i8").v


def _saturated(x: E, name: str, element: str) -> E:
    type_ = vector(element, x.v.lanes)
    if x.b.module.is_x86 and name == "fptosi" and x.v.lanes > 1:
        # LLVM takes vectors apart for the intrinsic there: the largest value is chosen for what is beyond it instead.
        limit = 2.0 ** (int(element[1:]) - 1)
        inside = x.compare("oge", -limit) & x.compare("olt", limit)
        whole = inside.select(x, 0.0).to("fptosi", element)
        whole = x.compare("olt", -limit).select(int(-limit), whole)
        return x.compare("oge", limit).select(int(limit) - 1, whole)
    return E(x.b, x.b.call(f"llvm.{name}.sat.{mangle(type_)}.{mangle(x.v.type)}", type_, x.v))


def emit_bitcast(b: Function, value: V, source: DType, target: DType) -> V:
    """The same bits read as another type of the same width."""
    if source == target:
        return value
    if source.bits != target.bits:
        raise DTypeError(f"bitcast of {source} to {target}", hint="the types must have the same width")
    if source.bits < 8:
        return value
    raw = b.bitcast(store_convert(b, value, source), vector(memory_type(target), value.lanes))
    return load_convert(b, raw, target)
