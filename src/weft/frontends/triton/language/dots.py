"""Matrix products: `tl.dot`, and `tl.dot_scaled` of block-scaled formats (mxfp8, mxfp4, nvfp4)."""

from __future__ import annotations

import math
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import mapped, where
from weft.frontends.triton.language.casting import converted, same_bits
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import constant, typed
from weft.frontends.triton.language.shapes import broadcast_to, expand_dims, join, permute, reshape
from weft.frontends.triton.language.types import dtype
from weft.frontends.triton.language.values import tensor

PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
_OPERANDS = (types.int8, types.uint8, types.float16, types.bfloat16, types.float32, types.float64)


def dot(
    input: tensor,
    other: tensor,
    acc: Any = None,
    input_precision: Any = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = types.float32,
) -> tensor:
    """The matrix product of two tiles, added to `acc`. Leading axes are batches."""
    precision, accumulator, wanted = unwrap(input_precision), unwrap(acc), unwrap(out_dtype)
    if precision is not None and unwrap(allow_tf32) is not None:
        raise KernelValueError("Only one of input_precision and allow_tf32 can be specified")
    if precision is not None and str(precision).lower() not in PRECISIONS:
        raise KernelValueError(f"input_precision must be one of {PRECISIONS}. Got {precision}")
    _check_operands(input, other)
    result = _result_type(input, wanted)
    sides = [*input.sides[:-1], other.sides[-1]]
    if accumulator is not None:
        if not isinstance(accumulator, tensor) or list(accumulator.sides) != sides:
            raise KernelShapeError(
                f"accumulator shape is incompatible: the product is {list(sides)}, the accumulator {accumulator}"
            )
        if accumulator.dtype != result:
            raise KernelTypeError(
                f"the accumulator is {accumulator.dtype}, the product {result}",
                hint=f"make the accumulator {result}, or give out_dtype=tl.{accumulator.dtype.codegen_name()}",
            )
    if input.dtype.is_fp8():
        # All 8-bit floats are 16-bit floats. A GPU may add up products of 8-bit ones with few digits, unless it is told
        # how many: then it does not see them.
        if unwrap(max_num_imprecise_acc) is not None:
            input, other = converted(input, types.float32, None), converted(other, types.float32, None)
        input, other = converted(input, types.float16, None), converted(other, types.float16, None)
    start = None if accumulator is None else accumulator.handle
    handle = builder.current.get().dot(input.handle, other.handle, start, input.dtype.stored, result.stored)
    return typed(handle, result, sides)


def _check_operands(a: Any, b: Any) -> None:
    if not isinstance(a, tensor) or not isinstance(b, tensor) or len(a.sides) < 2 or len(a.sides) != len(b.sides):
        raise KernelShapeError(f"tl.dot: both inputs must be either 2D or 3D, got {a} and {b}")
    if a.sides[:-2] != b.sides[:-2]:
        raise KernelShapeError(f"input and other must have equal batch shapes, got {a} and {b}")
    if a.sides[-1] != b.sides[-2]:
        raise KernelShapeError(
            f"input and other must have equal reduction dimensions: First input shape ({list(a.sides)}) and second"
            f" input shape {list(b.sides)} are not compatible for matmul",
            hint="transpose one of them with tl.trans",
        )
    if a.dtype.is_fp8() and b.dtype.is_fp8():
        return
    for name, value in (("lhs", a), ("rhs", b)):
        if value.dtype not in _OPERANDS:
            raise KernelTypeError(f"Unsupported {name} dtype {value.dtype}", hint="cast it with .to(tl.float16)")
    if a.dtype != b.dtype:
        raise KernelTypeError(
            f"Both operands must be same dtype. Got {a.dtype} and {b.dtype}", hint="cast one of them with .to(...)"
        )
    if a.dtype.is_uint8():
        raise KernelTypeError(f"tl.dot of integers: only int8 supported, got {a.dtype}")


def _result_type(a: tensor, wanted: dtype) -> dtype:
    if a.dtype.is_int():
        return types.int32
    if wanted.is_bf16():
        raise KernelValueError(
            "out_dtype=bfloat16 is unsupported", hint="use out_dtype=float32/float16 and cast with `.to(tl.bfloat16)`"
        )
    if a.dtype.is_fp32() or a.dtype.is_bf16():
        return types.float32
    return types.float64 if a.dtype.is_fp64() else wanted


_FORMATS = {
    "e2m1": (types.uint8, types.uint8),
    "e4m3": (types.float8e4nv, types.uint8),
    "e5m2": (types.float8e5, types.uint8),
    "bf16": (types.bfloat16, types.uint16),
    "fp16": (types.float16, types.uint16),
}


def dot_scaled(
    lhs: tensor,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: tensor,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = types.float32,
) -> tensor:
    """The product of two tiles whose elements come in blocks along K, each block with a scale.

    Scales are e8m0 bytes for 32 elements, or fp8e4nv for 16. Elements of 4 bits are packed two to a byte, along K or,
    without `k_pack`, along the other axis.
    """
    if unwrap(out_dtype) != types.float32:
        raise KernelTypeError(f"Only float32 is supported for out_dtype at the moment, got {unwrap(out_dtype)}")
    a = _unpacked(lhs, unwrap(lhs_format), unwrap(lhs_k_pack), -1, "lhs")
    b = _unpacked(rhs, unwrap(rhs_format), unwrap(rhs_k_pack), -2, "rhs")
    if a.sides[-1] != b.sides[-2]:
        raise KernelShapeError(
            f"Reduction dimension should pack the same number of elements; (lhs: {lhs} vs rhs: {rhs})"
        )
    scale = unwrap(lhs_scale)
    if scale is not None:
        a = mapped("mul", a, _spread_scale(scale, a, "lhs_scale"))
    scale = unwrap(rhs_scale)
    if scale is not None:
        order = [*range(len(b.sides) - 2), len(b.sides) - 1, len(b.sides) - 2]
        flipped = permute(b, order)
        b = permute(mapped("mul", flipped, _spread_scale(scale, flipped, "rhs_scale")), order)
    if _fits_bf16(unwrap(lhs_format), unwrap(lhs_scale)) and _fits_bf16(unwrap(rhs_format), unwrap(rhs_scale)):
        a, b = converted(a, types.bfloat16, None), converted(b, types.bfloat16, None)
    return dot(a, b, acc, input_precision="ieee")


def _fits_bf16(format: str, scale: Any) -> bool:
    """Whether elements times their scale have no more digits than bfloat16, for which there are tensor cores.

    At most four binary digits by four, or any number by a power of two. Both types have the same exponents.
    """
    if format == "bf16":
        return scale is None or not scale.dtype.is_fp8()
    return format != "fp16"


def _unpacked(value: tensor, format: str, along_k: bool, k_axis: int, name: str) -> tensor:
    """Elements of a format as fp32."""
    if format not in _FORMATS:
        raise KernelValueError(f"Invalid float format: {format}.", hint=f"use one of {', '.join(_FORMATS)}")
    element, packed = _FORMATS[format]
    if value.dtype not in (element, packed):
        raise KernelTypeError(f"Unexpected dtype for {format}. Got {value.dtype}", hint=f"give {element} or {packed}")
    if format != "e2m1":
        if not along_k:
            raise KernelValueError(f"only mxfp4 inputs can be packed along a dimension different than K, {name} is not")
        return converted(same_bits(value, element), types.float32, None)
    axis = len(value.sides) + (k_axis if along_k else -3 - k_axis)
    word = converted(value, types.uint32, None)
    nibble = constant(0xF, types.uint32, word.sides)
    low = mapped("and", word, nibble)
    high = mapped("shr", word, constant(4, types.uint32, word.sides))
    both = join(_four_bit_float(low), _four_bit_float(high))
    rank = len(value.sides)
    both = permute(both, [*range(axis + 1), rank, *range(axis + 1, rank)])
    return reshape(both, [2 * side if i == axis else side for i, side in enumerate(value.sides)])


def _four_bit_float(code: tensor) -> tensor:
    """A sign, two bits of exponent with a bias of 1, and one of mantissa, put where fp32 has them."""

    def word(number: int) -> tensor:
        return constant(number, types.uint32, code.sides)

    magnitude = mapped("shl", mapped("and", code, word(7)), word(22))
    scaled = mapped("mul", same_bits(magnitude, types.float32), constant(2.0**126, types.float32, code.sides))
    sign = mapped("shl", mapped("and", code, word(8)), word(28))
    return same_bits(mapped("or", same_bits(scaled, types.uint32), sign), types.float32)


def _spread_scale(scale: tensor, value: tensor, name: str) -> tensor:
    """A scale for each element of a tile whose last axis is K."""
    block = 16 if scale.dtype.is_fp8e4nv() else 32
    *outer, depth = value.sides
    if list(scale.sides) != [*outer, depth // block]:
        raise KernelShapeError(f"{name} must be a tensor of shape {[*outer, depth // block]}. Got {list(scale.sides)}")
    factor = converted(scale, types.float32, None) if scale.dtype.is_fp8() else _power_of_two(scale, name)
    tiled = broadcast_to(expand_dims(factor, len(scale.sides)), [*scale.sides, block])
    return reshape(tiled, value.sides)


def _power_of_two(scale: tensor, name: str) -> tensor:
    """A byte of exponent: 2**(byte - 127), and NaN for 255."""
    if scale.dtype not in (types.uint8, types.int8):
        raise KernelTypeError(f"{name} must be uint8 (e8m0) or fp8e4nv, got {scale.dtype}")
    byte = converted(same_bits(scale, types.uint8), types.uint32, None)
    bits = mapped("shl", byte, constant(23, types.uint32, byte.sides))
    number = same_bits(bits, types.float32)
    number = where(byte == constant(0, types.uint32), constant(2.0**-127, types.float32), number)
    return where(byte == constant(255, types.uint32), constant(math.nan, types.float32), number)
