"""The types of numbers, with the names Triton gives them. `stored` is the `DType` the builder knows an element by."""

from __future__ import annotations

import enum
from typing import Any

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language.constants import base_type, base_value, unwrap
from weft.ir import types as ir
from weft.ir.types import DType

_STORED: dict[str, DType] = {
    "int1": ir.boolean,
    "int8": ir.i8,
    "int16": ir.i16,
    "int32": ir.i32,
    "int64": ir.i64,
    "uint8": ir.u8,
    "uint16": ir.u16,
    "uint32": ir.u32,
    "uint64": ir.u64,
    "fp8e4nv": ir.f8e4m3,
    "fp8e5": ir.f8e5m2,
    # Formats of other machines: bytes, which the casts take apart and put together.
    "fp8e4b8": ir.u8,
    "fp8e4b15": ir.u8,
    "fp8e5b16": ir.u8,
    "fp16": ir.f16,
    "bf16": ir.bf16,
    "fp32": ir.f32,
    "fp64": ir.f64,
}

# Bits of the mantissa, bias of the exponent.
_FLOAT_FORMATS: dict[str, tuple[int, int]] = {
    "fp8e4b15": (3, 15),
    "fp8e4nv": (3, 7),
    "fp8e4b8": (3, 8),
    "fp8e5": (2, 15),
    "fp8e5b16": (2, 16),
    "fp16": (10, 15),
    "bf16": (7, 127),
    "fp32": (23, 127),
    "fp64": (52, 1023),
}


class dtype(base_type):
    """The type of a number."""

    SINT_TYPES = ["int8", "int16", "int32", "int64"]
    UINT_TYPES = ["int1", "uint8", "uint16", "uint32", "uint64"]
    FP_TYPES = ["fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64"]
    STANDARD_FP_TYPES = ["fp16", "bf16", "fp32", "fp64"]
    OTHER_TYPES = ["void"]

    class SIGNEDNESS(enum.Enum):
        SIGNED = 0
        UNSIGNED = 1

    class KIND(enum.Enum):
        BOOLEAN = 0
        INTEGRAL = 1
        FLOATING = 2

    def __init__(self, name: Any) -> None:
        self.name = unwrap(name)
        if not dtype.is_dtype(self.name):
            raise KernelTypeError(f"{self.name} is not a type", hint=f"the types are {', '.join([*_STORED, 'void'])}")
        self.primitive_bitwidth = 0 if self.name == "void" else _STORED[self.name].bits
        self.itemsize = self.primitive_bitwidth // 8
        if self.name in _FLOAT_FORMATS:
            self.fp_mantissa_width, self.exponent_bias = _FLOAT_FORMATS[self.name]
        elif self.name != "void":
            signed = self.name in dtype.SINT_TYPES
            self.int_signedness = dtype.SIGNEDNESS.SIGNED if signed else dtype.SIGNEDNESS.UNSIGNED
            self.int_bitwidth = self.primitive_bitwidth

    @property
    def stored(self) -> DType:
        """What the builder knows an element as."""
        return _STORED[self.name]

    @property
    def scalar(self) -> Any:
        """The type of an element."""
        return self

    @property
    def is_foreign(self) -> bool:
        """Is this one of the 8-bit floats that the builder has no type for?"""
        return self.name in ("fp8e4b8", "fp8e4b15", "fp8e5b16")

    def is_fp8(self) -> bool:
        return "fp8" in self.name

    def is_fp8e4nv(self) -> bool:
        return self.name == "fp8e4nv"

    def is_fp8e4b8(self) -> bool:
        return self.name == "fp8e4b8"

    def is_fp8e4b15(self) -> bool:
        return self.name == "fp8e4b15"

    def is_fp8e5(self) -> bool:
        return self.name == "fp8e5"

    def is_fp8e5b16(self) -> bool:
        return self.name == "fp8e5b16"

    def is_fp16(self) -> bool:
        return self.name == "fp16"

    def is_bf16(self) -> bool:
        return self.name == "bf16"

    def is_fp32(self) -> bool:
        return self.name == "fp32"

    def is_fp64(self) -> bool:
        return self.name == "fp64"

    def is_int1(self) -> bool:
        return self.name == "int1"

    def is_int8(self) -> bool:
        return self.name == "int8"

    def is_int16(self) -> bool:
        return self.name == "int16"

    def is_int32(self) -> bool:
        return self.name == "int32"

    def is_int64(self) -> bool:
        return self.name == "int64"

    def is_uint8(self) -> bool:
        return self.name == "uint8"

    def is_uint16(self) -> bool:
        return self.name == "uint16"

    def is_uint32(self) -> bool:
        return self.name == "uint32"

    def is_uint64(self) -> bool:
        return self.name == "uint64"

    def is_floating(self) -> bool:
        return self.name in dtype.FP_TYPES

    def is_standard_floating(self) -> bool:
        return self.name in dtype.STANDARD_FP_TYPES

    def is_int_signed(self) -> bool:
        return self.name in dtype.SINT_TYPES

    def is_int_unsigned(self) -> bool:
        return self.name in dtype.UINT_TYPES

    def is_int(self) -> bool:
        return self.is_int_signed() or self.is_int_unsigned()

    def is_bool(self) -> bool:
        return self.is_int1()

    def is_void(self) -> bool:
        return self.name == "void"

    def is_block(self) -> bool:
        return False

    def is_ptr(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    @staticmethod
    def is_dtype(type_str: str) -> bool:
        return type_str in _STORED or type_str in dtype.OTHER_TYPES

    def kind(self) -> KIND:
        if self.is_bool():
            return dtype.KIND.BOOLEAN
        return dtype.KIND.INTEGRAL if self.is_int() else dtype.KIND.FLOATING

    def get_int_max_value(self) -> int:
        return (1 << (self.int_bitwidth - self.is_int_signed())) - 1

    def get_int_min_value(self) -> int:
        return -(1 << (self.int_bitwidth - 1)) if self.is_int_signed() else 0

    def with_element_ty(self, element_ty: dtype) -> dtype:
        """The same shape of another element type."""
        return element_ty

    def __eq__(self, other: object) -> bool:
        other = unwrap(other)
        return isinstance(other, dtype) and type(self) is type(other) and self.name == other.name

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"triton.language.{self.codegen_name()}"

    def codegen_name(self) -> str:
        if self.name.startswith("fp"):
            return "float" + self.name[2:]
        return "bfloat16" if self.name == "bf16" else self.name

    @property
    def cache_key_part(self) -> str:
        return self.name

    def mangle(self) -> str:
        if self.is_int():
            return ("i" if self.is_int_signed() else "u") + str(self.int_bitwidth)
        return "V" if self.is_void() else self.name

    def unflatten(self, handles: list[Handle], cursor: int) -> tuple[base_value, int]:
        from weft.frontends.triton.language.values import tensor

        return tensor(handles[cursor], self), cursor + 1


void = dtype("void")
int1, int8, int16, int32, int64 = (dtype(f"int{bits}") for bits in (1, 8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float8e5, float8e5b16 = dtype("fp8e5"), dtype("fp8e5b16")
float8e4nv, float8e4b8, float8e4b15 = dtype("fp8e4nv"), dtype("fp8e4b8"), dtype("fp8e4b15")
float16, bfloat16, float32, float64 = dtype("fp16"), dtype("bf16"), dtype("fp32"), dtype("fp64")

OF_STORED: dict[DType, dtype] = {_STORED[name]: dtype(name) for name in _STORED if not dtype(name).is_foreign}
"""The type of the language that a `DType` is shown as."""


def get_int_dtype(bitwidth: Any, signed: Any) -> dtype:
    """The integer type of so many bits."""
    bitwidth, signed = unwrap(bitwidth), unwrap(signed)
    if bitwidth == 1:
        return int1
    if bitwidth not in (8, 16, 32, 64):
        raise KernelTypeError(f"there is no integer type of {bitwidth} bits", hint="widths are 1, 8, 16, 32 and 64")
    return dtype(f"{'' if signed else 'u'}int{bitwidth}")
