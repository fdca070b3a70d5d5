"""How operands come together: Python's numbers become tensors, types are promoted, shapes broadcast.

The rules are Triton's: a Python number takes the type of the tensor beside it unless it is of a higher kind
(bool < integer < float); two tensors meet in the wider type, integers as in C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.constants import base_value, unwrap
from weft.frontends.triton.language.types import block_type, dtype
from weft.frontends.triton.language.values import tensor

Operand: TypeAlias = Any
"""A tensor, a constexpr or a Python number."""

_LEAST_FLOAT32, _GREATEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127


def typed(handle: Any, element: dtype, sides: Sequence[int]) -> tensor:
    """A handle as a tensor: a tile if it has sides, else a scalar."""
    return tensor(handle, block_type(element, sides) if sides else element)


def like(handle: Any, value: tensor, element: dtype | None = None) -> tensor:
    """A handle as a tensor of the shape of another one, and of its element type unless another is given."""
    return tensor(handle, value.type if element is None else value.type.with_element_ty(element))


def constant(value: float | int | bool, element: dtype, sides: Sequence[int] = ()) -> tensor:
    """A tile of one number."""
    if element.is_foreign:
        from weft.frontends.triton.language.casting import cast

        return cast(constant(float(value), types.float32, sides), element)
    handle = builder.current.get().constant(value, element.stored, tuple(sides))
    return typed(handle, element, sides)


def _type_of_number(value: float | int | bool) -> dtype:
    if isinstance(value, bool):
        return types.int1
    if isinstance(value, int):
        for element in (types.int32, types.uint32, types.int64, types.uint64):
            if element.get_int_min_value() <= value <= element.get_int_max_value():
                return element
        raise KernelValueError(f"Nonrepresentable integer {value}.", hint="integers have at most 64 bits")
    size = abs(value)
    single = size in (0.0, math.inf) or math.isnan(value) or _LEAST_FLOAT32 <= size <= _GREATEST_FLOAT32
    return types.float32 if single else types.float64


def to_tensor(x: Operand) -> tensor:
    """A value as a tensor: a Python number becomes an int1, an int32 (or wider if it must) or an fp32."""
    x = unwrap(x)
    if isinstance(x, tensor):
        return x
    if isinstance(x, (bool, int, float)):
        return constant(x, _type_of_number(x))
    if hasattr(x, "__index__") and not isinstance(x, base_value):
        return constant(int(x), _type_of_number(int(x)))
    raise KernelTypeError(
        f"cannot convert {x} of type {type(x)} to tensor", hint="kernels compute with tensors and numbers"
    )


def promote_integers(a: dtype, b: dtype) -> dtype:
    """The common type of two integer types, as C finds it."""
    if a.int_signedness == b.int_signedness:
        return a if a.int_bitwidth > b.int_bitwidth else b
    unsigned, signed = (a, b) if a.is_int_unsigned() else (b, a)
    return unsigned if unsigned.int_bitwidth >= signed.int_bitwidth else signed


def common_type(a: dtype, a_is_number: bool, b: dtype, b_is_number: bool, dividing: bool) -> dtype:
    """The type in which two operands are combined. Division of 16-bit floats is done in fp32."""
    if a_is_number != b_is_number:
        number, other = (a, b) if a_is_number else (b, a)
        if number.kind().value <= other.kind().value:
            return types.float32 if dividing and other in (types.float16, types.bfloat16) else other
    for wide in (types.float64, types.float32):
        if wide in (a, b):
            return wide
    if types.float16 in (a, b):
        return types.float32 if dividing else types.float16
    if types.bfloat16 in (a, b):
        return types.bfloat16 if a == b and not dividing else types.float32
    if a.is_fp8() and b.is_fp8():
        return a if a == b else types.float16
    if not a.is_int() or not b.is_int():
        raise KernelTypeError(f"unexpected type {a} and {b}", hint="cast one operand with .to(...)")
    if dividing and a.int_signedness != b.int_signedness:
        raise KernelTypeError(
            f"Cannot use /, //, or % with {a} and {b} because they have different signedness",
            hint="cast one of them with .to(...)",
        )
    return promote_integers(a, b)


def incompatible(a: Any, b: Any) -> KernelTypeError:
    return KernelTypeError(f"invalid operands of type {a!r} and {b!r}", hint="pointers take integer offsets only")


def _check_pointer(a: dtype, b: dtype, allowed: bool) -> None:
    if a.is_ptr() and (not allowed or (b.is_ptr() and a != b) or b.is_floating()):
        raise incompatible(a, b)


def pair(
    a: Operand,
    b: Operand,
    *,
    pointer_a: bool = False,
    pointer_b: bool = False,
    dividing: bool = False,
    arithmetic: bool = True,
) -> tuple[tensor, tensor]:
    """Two operands as tensors of one type and one shape. Pointers, where they are allowed, keep their type."""
    from weft.frontends.triton.language.casting import cast

    numbers = [unwrap(a), unwrap(b)]
    is_number = [isinstance(number, (bool, int, float)) for number in numbers]
    tensors = [to_tensor(number) for number in numbers]
    elements = [tensor_.dtype for tensor_ in tensors]
    _check_pointer(elements[0], elements[1], pointer_a)
    _check_pointer(elements[1], elements[0], pointer_b)
    if arithmetic and not elements[0].is_ptr() and not elements[1].is_ptr():
        common = common_type(elements[0], is_number[0], elements[1], is_number[1], dividing)
        for i in range(2):
            if is_number[i]:
                _check_range(numbers[i], common)
                tensors[i] = constant(numbers[i], common)
            else:
                tensors[i] = cast(tensors[i], common)
    return broadcast_pair(tensors[0], tensors[1])


def _check_range(number: Any, element: dtype) -> None:
    if element.is_int_unsigned() and number < 0:
        raise KernelValueError(
            "Cannot perform a binary operation between an unsigned tensor and a negative scalar",
            hint=f"cast the tensor to a signed type: its type is {element}, the number {number}",
        )
    if element.is_int() and not element.get_int_min_value() <= number <= element.get_int_max_value():
        raise KernelValueError(
            f"Scalar {number} is out of range for type {element}", hint="cast the tensor to a wider type"
        )


def row_major(sides: Sequence[int]) -> list[int]:
    """The strides of a tile stored row by row."""
    strides = [1] * len(sides)
    for axis in reversed(range(len(sides) - 1)):
        strides[axis] = strides[axis + 1] * sides[axis + 1]
    return strides


def viewed(value: tensor, sides: Sequence[int], offset: int, strides: Sequence[int]) -> tensor:
    """Other places of the same elements; see `Builder.view`."""
    if tuple(sides) == value.sides and offset == 0 and list(strides) == row_major(sides):
        return value
    handle = builder.current.get().view(value.handle, tuple(sides), offset, list(strides))
    return typed(handle, value.dtype, sides)


def spread(value: tensor, sides: Sequence[int]) -> tensor:
    """Broadcast to a shape of the same rank, or a scalar to any shape."""
    sides = tuple(sides)
    if value.sides == sides:
        return value
    if not value.sides:
        return viewed(value, sides, 0, [0] * len(sides))
    if len(value.sides) != len(sides):
        raise KernelShapeError(
            f"Cannot broadcast, rank mismatch: {list(value.sides)}, {list(sides)}",
            hint="add axes with x[:, None] or tl.expand_dims",
        )
    for axis, (have, want) in enumerate(zip(value.sides, sides, strict=True)):
        if have not in (1, want):
            raise KernelShapeError(
                f"Cannot broadcast, the expanded size of the tensor ({want}) must match the existing size ({have})"
                f" at non-singleton dimension {axis}: {list(value.sides)}, {list(sides)}"
            )
    strides = [
        0 if have != want else stride
        for have, want, stride in zip(value.sides, sides, row_major(value.sides), strict=True)
    ]
    return viewed(value, sides, 0, strides)


def common_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all of these broadcast to. Missing axes are added in front."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    sides: list[int] = []
    for axis, lengths in enumerate(zip(*padded, strict=True)):
        longest = {length for length in lengths if length != 1}
        if len(longest) > 1:
            seen = " and ".join(str(list(shape)) for shape in shapes)
            a, b = sorted(longest)[:2]
            raise KernelShapeError(
                f"Cannot make_shape_compatible: incompatible dimensions at index {axis}: {a} and {b} (shapes {seen})",
                hint="tiles meet when their sides are equal or 1: see x[:, None] and x[None, :]",
            )
        sides.append(longest.pop() if longest else 1)
    return tuple(sides)


def broadcast_all(*values: tensor) -> list[tensor]:
    """Tensors, spread to one shape."""
    sides = common_shape(*(value.sides for value in values))
    spread_values: list[tensor] = []
    for value in values:
        if value.sides and len(value.sides) < len(sides):
            padded = [1] * (len(sides) - len(value.sides)) + list(value.sides)
            value = viewed(value, padded, 0, row_major(padded))
        spread_values.append(spread(value, sides))
    return spread_values


def broadcast_pair(a: tensor, b: tensor) -> tuple[tensor, tensor]:
    first, second = broadcast_all(a, b)
    return first, second
