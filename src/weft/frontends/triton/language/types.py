"""The types of the language: pointers, tiles and tuples; those of numbers are in `element_types.py`, and here too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError
from weft.frontends.triton.language.constants import base_type, base_value, unwrap
from weft.frontends.triton.language.element_types import OF_STORED as OF_STORED
from weft.frontends.triton.language.element_types import bfloat16 as bfloat16
from weft.frontends.triton.language.element_types import dtype as dtype
from weft.frontends.triton.language.element_types import float8e4b8 as float8e4b8
from weft.frontends.triton.language.element_types import float8e4b15 as float8e4b15
from weft.frontends.triton.language.element_types import float8e4nv as float8e4nv
from weft.frontends.triton.language.element_types import float8e5 as float8e5
from weft.frontends.triton.language.element_types import float8e5b16 as float8e5b16
from weft.frontends.triton.language.element_types import float16 as float16
from weft.frontends.triton.language.element_types import float32 as float32
from weft.frontends.triton.language.element_types import float64 as float64
from weft.frontends.triton.language.element_types import get_int_dtype as get_int_dtype
from weft.frontends.triton.language.element_types import int1 as int1
from weft.frontends.triton.language.element_types import int8 as int8
from weft.frontends.triton.language.element_types import int16 as int16
from weft.frontends.triton.language.element_types import int32 as int32
from weft.frontends.triton.language.element_types import int64 as int64
from weft.frontends.triton.language.element_types import uint8 as uint8
from weft.frontends.triton.language.element_types import uint16 as uint16
from weft.frontends.triton.language.element_types import uint32 as uint32
from weft.frontends.triton.language.element_types import uint64 as uint64
from weft.frontends.triton.language.element_types import void as void
from weft.ir import types as ir
from weft.ir.types import DType

TRITON_MAX_TENSOR_NUMEL = 1 << 20


class pointer_type(dtype):
    """The type of a pointer to elements of a type."""

    def __init__(self, element_ty: Any, address_space: int = 1, const: bool = False) -> None:
        element_ty = unwrap(element_ty)
        if not isinstance(element_ty, dtype):
            raise KernelTypeError(f"a pointer points to a type, not to {type(element_ty).__name__}")
        self.element_ty = element_ty
        self.address_space = unwrap(address_space)
        self.const = unwrap(const)
        self.name = f"{'const_' if self.const else ''}pointer<{element_ty}>"
        self.primitive_bitwidth = 64
        self.itemsize = 8

    @property
    def stored(self) -> DType:
        return ir.i64

    def is_ptr(self) -> bool:
        return True

    def is_const(self) -> bool:
        return self.const

    def __eq__(self, other: object) -> bool:
        other = unwrap(other)
        return (
            isinstance(other, pointer_type)
            and (self.element_ty, self.address_space) == (other.element_ty, other.address_space)
            and self.const == other.const
        )

    __hash__ = dtype.__hash__

    def __repr__(self) -> str:
        return self.name

    def mangle(self) -> str:
        return f"P{self.element_ty.mangle()}"


class block_type(dtype):
    """The type of a tile. Its sides may be of any length."""

    def __init__(self, element_ty: Any, shape: Sequence[Any]) -> None:
        self.element_ty: dtype = unwrap(element_ty)
        self.shape: tuple[int, ...] = check_shape(shape)
        if not self.shape:
            raise KernelShapeError("a tile has at least one side", hint="use the element type for a scalar")
        self.numel = math.prod(self.shape)
        self.name = f"<{list(self.shape)}, {self.element_ty}>"

    @property
    def stored(self) -> DType:
        return self.element_ty.stored

    @property
    def scalar(self) -> Any:
        return self.element_ty

    @property
    def nbytes(self) -> int:
        return self.numel * (self.element_ty.primitive_bitwidth // 8)

    def is_block(self) -> bool:
        return True

    def get_block_shapes(self) -> tuple[int, ...]:
        return self.shape

    def with_element_ty(self, element_ty: dtype) -> dtype:
        return block_type(element_ty, self.shape)

    def __eq__(self, other: object) -> bool:
        other = unwrap(other)
        return isinstance(other, block_type) and (self.element_ty, self.shape) == (other.element_ty, other.shape)

    __hash__ = dtype.__hash__

    def __repr__(self) -> str:
        return self.name

    def mangle(self) -> str:
        return f"{self.scalar.mangle()}S{'_'.join(map(str, self.shape))}S"


WHOLE_NUMBER = "it is known at compile time, but is no whole number: divide by //, or pass int(...)"
"""What to do about a side or a bound that is a float."""


def check_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    """The sides of a tile, as numbers that are known now and are not too many elements."""
    sides: list[int] = []
    for axis, side in enumerate(shape):
        number = unwrap(side)
        if not isinstance(number, int) or isinstance(number, bool):
            kind = getattr(number, "type", type(number).__name__)
            raise KernelShapeError(
                f"Shape element {axis} must have type `constexpr[int]`, got `{number}` of type {kind}",
                hint=WHOLE_NUMBER
                if isinstance(number, float)
                else "sides of a tile are known at compile time: make the parameter a tl.constexpr",
            )
        if number < 1:
            raise KernelShapeError(f"side {axis} of a tile is {number}; it must be at least 1")
        sides.append(number)
    if math.prod(sides) > TRITON_MAX_TENSOR_NUMEL:
        raise KernelShapeError(
            f"numel ({math.prod(sides)}) exceeds triton maximum tensor numel ({TRITON_MAX_TENSOR_NUMEL})",
            hint="work on smaller tiles in a loop, or on more programs",
        )
    return tuple(sides)


class tuple_type(base_type):
    """The type of a tuple, whose items may have names."""

    def __init__(self, types: Sequence[Any], fields: Sequence[str] | None = None) -> None:
        self.types = list(types)
        self.fields = list(fields) if fields else [""] * len(self.types)
        self.name = f"[{','.join(f'{k}:{v}' for k, v in zip(self.fields, self.types, strict=True))}]"

    def __str__(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[Any]:
        return iter(self.types)

    def __getitem__(self, index: Any) -> Any:
        return self.types[unwrap(index)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple_type) and self.types == other.types and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.name)

    def mangle(self) -> str:
        return f"T{'_'.join(type_.mangle() for type_ in self.types)}T"

    def unflatten(self, handles: list[Handle], cursor: int) -> tuple[base_value, int]:
        from weft.frontends.triton.language.values import tuple as tuple_value

        values: list[base_value] = []
        for type_ in self.types:
            value, cursor = type_.unflatten(handles, cursor)
            values.append(value)
        return tuple_value(values, self), cursor


class slice_type(dtype):
    """The type of `a:b:c` inside of square brackets."""

    def __init__(self) -> None:
        self.name = "slice_type"


pi32_t = pointer_type(int32)
