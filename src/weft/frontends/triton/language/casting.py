"""Conversions: numbers to other types, with a rounding mode where it matters, and bits as another type."""

from __future__ import annotations

from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import constant, like, to_tensor
from weft.frontends.triton.language.types import dtype, pointer_type
from weft.frontends.triton.language.values import member, operator, tensor


@operator("cast")
@member
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> tensor:
    """The input with elements of another type: converted, or with `bitcast` the same bits."""
    value, target = to_tensor(input), unwrap(dtype)
    rounding: str | None = unwrap(fp_downcast_rounding)
    if not isinstance(target, types.dtype):
        raise KernelTypeError(f"{target!r} is not a type to cast to", hint="use tl.float32, tl.int32, ...")
    if unwrap(bitcast):
        return same_bits(value, target.scalar)
    return converted(value, target.scalar, rounding)


def same_bits(value: tensor, target: dtype) -> tensor:
    """The bits of each element as another type of the same width."""
    source = value.dtype
    if source == target:
        return value
    if source.is_ptr() or target.is_ptr():
        return converted(value, target, None)
    if source.primitive_bitwidth != target.primitive_bitwidth:
        raise KernelValueError(
            f"Cannot bitcast data-type of size {source.primitive_bitwidth} to data-type of size"
            f" {target.primitive_bitwidth}: {source} to {target}",
            hint="without bitcast=True the numbers are converted",
        )
    if source.stored == target.stored:
        return like(value.handle, value, target)
    return like(builder.current.get().bitcast(value.handle, source.stored, target.stored), value, target)


def _checked_rounding(source: dtype, target: dtype, rounding: str | None) -> str | None:
    if rounding is None:
        return None
    if rounding not in ("rtne", "rtz"):
        raise KernelValueError(f"Invalid rounding mode: {rounding}. Supported rounding modes are 'rtne' and 'rtz'.")
    narrower = source.is_floating() and target.is_floating() and target.primitive_bitwidth < source.primitive_bitwidth
    if not narrower:
        raise KernelValueError(
            "fp_downcast_rounding should be set only for truncating fp conversions."
            f" Source scalar type is {source} and destination type is {target}"
        )
    return None if rounding == "rtne" else rounding


def converted(value: tensor, target: dtype, rounding: str | None) -> tensor:
    """Each element as a number of another type."""
    source = value.dtype
    if source == target:
        return value
    rounding = _checked_rounding(source, target, rounding)
    if source.is_ptr() or target.is_ptr():
        return _converted_pointer(value, source, target)
    if source.is_foreign:
        return converted(_decoded(value), target, None)
    if target.is_foreign:
        return _encoded(converted(value, types.float32, None), target, rounding)
    primitives = builder.current.get()
    if target.is_bool():
        zero = constant(0, source, value.sides)
        return like(primitives.map("ne", [value.handle, zero.handle], source.stored), value, types.int1)
    if (source.is_fp8() and target.is_int()) or (source.is_int() and target.is_fp8()):
        return converted(converted(value, types.float32, None), target, None)
    if target.is_fp8() and not source.is_fp8():
        value = _bounded(value, _GREATEST[target.name])
    elif target.is_fp8():
        return converted(converted(value, types.float32, None), target, rounding)
    return like(primitives.cast(value.handle, source.stored, target.stored, rounding), value, target)


_GREATEST = {"fp8e4nv": 448.0, "fp8e5": 57344.0}


def _bounded(value: tensor, limit: float) -> tensor:
    """What is too large for an 8-bit float becomes its largest number, ∞ too; a NaN stays one."""
    primitives = builder.current.get()
    for function, bound in (("max", -limit), ("min", limit)):
        edge = constant(bound, value.dtype, value.sides)
        value = like(primitives.map(function, [value.handle, edge.handle], value.dtype.stored), value)
    return value


def _converted_pointer(value: tensor, source: dtype, target: dtype) -> tensor:
    primitives = builder.current.get()
    if isinstance(source, pointer_type) and isinstance(target, pointer_type):
        return like(value.handle, value, target)
    if isinstance(source, pointer_type) and target.is_int():
        address = like(primitives.pointer_to_int(value.handle, source.element_ty.stored), value, types.int64)
        if target.is_bool() or target.int_bitwidth == 64:
            return converted(address, target, None)
    if isinstance(target, pointer_type) and source.is_int():
        address = converted(value, types.int64, None)
        return like(primitives.int_to_pointer(address.handle, target.element_ty.stored), value, target)
    raise KernelTypeError(f"cannot cast {value} to {target}", hint="pointers are cast to and from int64")


def _bits(value: tensor, name: str, other: int | tensor) -> tensor:
    """A function of two operands on 32-bit words."""
    operand = constant(other, types.uint32, value.sides) if isinstance(other, int) else other
    return like(builder.current.get().map(name, [value.handle, operand.handle], value.dtype.stored), value)


def _decoded(value: tensor) -> tensor:
    """A foreign 8-bit float as fp32: the fields are put where fp32 has them, and the bias is made good."""
    element = value.dtype
    primitives = builder.current.get()
    word = like(primitives.cast(value.handle, element.stored, types.uint32.stored), value, types.uint32)
    magnitude = _bits(_bits(word, "and", 0x7F), "shl", 23 - element.fp_mantissa_width)
    sign = _bits(_bits(word, "and", 0x80), "shl", 24)
    number = same_bits(magnitude, types.float32)
    scale = constant(2.0 ** (127 - element.exponent_bias), types.float32, value.sides)
    number = like(primitives.map("mul", [number.handle, scale.handle], types.float32.stored), value, types.float32)
    signed = same_bits(_bits(same_bits(number, types.uint32), "or", sign), types.float32)
    if element.is_fp8e4b15():
        return signed
    # The formats with a shifted bias have one zero and one NaN, at the place of the other zero.
    hole = constant(0x80, types.uint32, value.sides)
    is_nan = primitives.map("eq", [word.handle, hole.handle], types.uint32.stored)
    nan = constant(float("nan"), types.float32, value.sides)
    return like(
        primitives.map("select", [is_nan, nan.handle, signed.handle], types.float32.stored), value, types.float32
    )


def _encoded(value: tensor, target: dtype, rounding: str | None) -> tensor:
    """fp32 as a foreign 8-bit float. What is too large becomes the largest number, or NaN where there is one."""
    primitives = builder.current.get()
    f32, u32 = types.float32.stored, types.uint32.stored
    word = same_bits(value, types.uint32)
    sign = _bits(_bits(word, "shr", 24), "and", 0x80)
    magnitude = same_bits(_bits(word, "and", 0x7FFFFFFF), types.float32)
    shift = 23 - target.fp_mantissa_width
    # Adding a power of two leaves in the last places of the sum what fits below the least normal number.
    least_normal = 2.0 ** (1 - target.exponent_bias)
    magic = 2.0 ** (23 - target.fp_mantissa_width + 1 - target.exponent_bias)
    magic_tile = constant(magic, types.float32, value.sides)
    total = like(primitives.map("add", [magnitude.handle, magic_tile.handle], f32), value, types.float32)
    small = _bits(same_bits(total, types.uint32), "sub", same_bits(magic_tile, types.uint32))
    bits = same_bits(magnitude, types.uint32)
    if rounding is None:
        odd = _bits(_bits(bits, "shr", shift), "and", 1)
        bits = _bits(_bits(bits, "add", (1 << (shift - 1)) - 1), "add", odd)
    large = _bits(_bits(bits, "shr", shift), "sub", (127 - target.exponent_bias) << target.fp_mantissa_width)
    limit = constant(least_normal, types.float32, value.sides)
    is_small = primitives.map("lt", [magnitude.handle, limit.handle], f32)
    code = like(primitives.map("select", [is_small, small.handle, large.handle], u32), value, types.uint32)
    code = _bits(code, "min", 0x7F)
    if not target.is_fp8e4b15():
        zero = constant(0, types.uint32, value.sides)
        is_zero = primitives.map("eq", [code.handle, zero.handle], u32)
        sign = like(primitives.map("select", [is_zero, zero.handle, sign.handle], u32), value, types.uint32)
    code = _bits(code, "or", sign)
    if not target.is_fp8e4b15():
        is_nan = primitives.map("isnan", [value.handle], f32)
        hole = constant(0x80, types.uint32, value.sides)
        code = like(primitives.map("select", [is_nan, hole.handle, code.handle], u32), value, types.uint32)
    return like(primitives.cast(code.handle, u32, target.stored), value, target)
