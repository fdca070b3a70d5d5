"""Torch's element types in Weft's terms, and torch's rules for the type that an operation computes in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]  no public name
)
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir import types
from weft.ir.expr import Expr
from weft.ir.types import DType, tensor_of

_DTYPES: dict[torch.dtype, DType] = {
    torch.float64: types.f64,
    torch.float32: types.f32,
    torch.float16: types.f16,
    torch.bfloat16: types.bf16,
    torch.float8_e4m3fn: types.f8e4m3,
    torch.float8_e5m2: types.f8e5m2,
    torch.int64: types.i64,
    torch.int32: types.i32,
    torch.int16: types.i16,
    torch.int8: types.i8,
    torch.uint64: types.u64,
    torch.uint32: types.u32,
    torch.uint16: types.u16,
    torch.uint8: types.u8,
    torch.bool: types.boolean,
    torch.complex64: types.c64,
    torch.complex128: types.c128,
}
_TORCH = {weft: torch_ for torch_, weft in _DTYPES.items()}

HALF = (types.f16, types.bf16)
FLOAT8 = (types.f8e4m3, types.f8e5m2)


def from_torch(dtype: torch.dtype) -> DType:
    """Weft's name of a torch type."""
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise UnsupportedError(f"{dtype} has no Weft type") from None


def to_torch(dtype: DType) -> torch.dtype:
    """Torch's name of a Weft type."""
    return _TORCH[dtype]


@cache
def largest_cast(dtype: DType) -> float | None:
    """The number that torch casts all larger ones to; None where they become infinite, or none.

    For f8e4m3, which has no infinity, versions of torch differ: those before 2.13 give NaN.
    """
    if dtype not in FLOAT8:
        return None
    narrow = to_torch(dtype)
    with _disable_current_modes():  # a graph may be traced now, on tensors without data
        found = torch.full((1,), math.inf, dtype=torch.float32, device="cpu").to(narrow).to(torch.float32).item()
    return found if math.isfinite(found) else None


Operand = SSAValue | bool | int | float | Expr
"""What an elementwise operator takes: a tensor, a number, or a number that is an expression of sizes."""


def result_type(operands: Iterable[Operand]) -> DType:
    """The common type of operands: tensors with dimensions decide, then those without, then numbers.

    An operand of lower rank in that order only counts where its category (bool, integer, float) is higher.
    """
    dimensioned: torch.dtype | None = None
    single: torch.dtype | None = None
    number: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, SSAValue):
            tensor = tensor_of(operand.type)
            if tensor.rank:
                dimensioned = _promoted(dimensioned, to_torch(tensor.dtype))
            else:
                single = _promoted(single, to_torch(tensor.dtype))
        else:
            number = _promoted(number, _number_type(operand))
    result = _combined(dimensioned, _combined(single, number))
    if result is None:
        raise UnsupportedError("an operation without operands has no result type")
    return from_torch(result)


def _number_type(number: object) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.get_default_dtype() if isinstance(number, float) else torch.int64


def _promoted(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_floating_point or higher.is_complex:
        return higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher
