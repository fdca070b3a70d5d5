"""Values of LLVM IR as text: a type with a name or a literal, and the types of elements in registers and memory."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from weft.ir.types import DType

_FLOATS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat"}
_FLOATS_IN_MEMORY = {"f64": "double", "f32": "float"}


class V(NamedTuple):
    """An LLVM value: its type and its name or literal. A tuple, as one is made for every instruction."""

    type: str
    name: str

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)

    @property
    def element(self) -> str:
        return self.type[1:-1].split(" x ", 1)[1] if self.type.startswith("<") else self.type

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@cache
def lanes_of(type_: str) -> int:
    """How many elements a vector has; a scalar has one."""
    return int(type_[1:].split(" ", 1)[0]) if type_.startswith("<") else 1


def scalar_type(dtype: DType) -> str:
    """The LLVM type that holds an element in registers: booleans are i1."""
    return _FLOATS.get(dtype.name) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The LLVM type that holds an element in memory: booleans take a byte, narrow floats are integers.

    LLVM for x86 moves a `bfloat` from one vector to another through a `float`, and calls a library for the way back.
    """
    return _FLOATS_IN_MEMORY.get(dtype.name) or f"i{max(dtype.bits, 8)}"


def vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def float_literal(value: float, element: str) -> str:
    """A floating-point literal that LLVM reads back exactly."""
    match element:
        case "half":
            return f"0xH{np.float16(value).view(np.uint16):04X}"
        case "bfloat":
            return f"0xR{np.array(value, ml_dtypes.bfloat16).view(np.uint16):04X}"
        case "float":
            value = float(np.float32(value))
        case _:
            pass
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def const(value: float | int | bool, type_: str) -> V:
    """A constant of a scalar or vector type (a splat)."""
    element = V(type_, "").element
    literal = str(int(value)) if element.startswith("i") else float_literal(float(value), element)
    if element == "i1":
        literal = "true" if value else "false"
    if type_ == element:
        return V(type_, literal)
    lanes = V(type_, "").lanes
    return V(type_, "<" + ", ".join([f"{element} {literal}"] * lanes) + ">")


def i64(value: int) -> V:
    return V("i64", str(value))
