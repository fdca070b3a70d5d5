"""Sums and products of narrow floats, two of a word at once, where kernels that people write round them.

Registers hold narrow floats as f32. What is computed of two neighbours that memory had in a word, or that were rounded
to one, and is rounded again, is one instruction. Both ways it is rounded once: f32 has more than twice the digits.

    and.b32, shl.b32     of each word                fma.rn.bf16x2   of the words and -0
    mul.f32, mul.f32                         →
    cvt.rn.bf16x2.f32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import Use

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.math import asm
from weft.backends.nvidia.emit.memory.global_memory import halves_of, word_of
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.ir.types import DType, f32
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_MINUS_ZERO = -0x7FFF8000  # in both halves, of either type
_ONE = {"bf16": 0x3F803F80, "f16": 0x3C003C00}
_MINUS_ONE = {"bf16": -0x407F4080, "f16": -0x43FF4400}


def packed_arithmetic(codegen: KernelCodegen, op: tile.MapOp, operands: Sequence[list[V]]) -> list[V] | None:
    """The results of a sum, difference or product by words; None where operands are in none, or it is not rounded."""
    if op.function.data not in ("mul", "add", "sub") or tile.tile_type(op.out).dtype != f32 or len(operands[0]) % 2:
        return None
    dtype = _rounded_to(op)
    if dtype is None:
        return None
    b, words = codegen.b, list[list[V]]()
    for values in operands:
        found = [
            word
            for low, high in zip(values[::2], values[1::2], strict=True)
            if (word := word_of(b, low, high, dtype.name)) is not None
        ]
        if 2 * len(found) != len(values):
            return None
        words.append(found)
    both = [_computed(codegen, op.function.data, x, y, dtype.name) for x, y in zip(*words, strict=True)]
    return [value for word in both for value in halves_of(b, word, dtype)]


def _computed(codegen: KernelCodegen, function: str, x: V, y: V, dtype: str) -> V:
    if function == "mul":
        factors = x, y, i32(_MINUS_ZERO)
    elif function == "add":
        factors = x, i32(_ONE[dtype]), y
    else:
        factors = y, i32(_MINUS_ONE[dtype]), x
    return asm(codegen.b, "i32", f"fma.rn.{dtype}x2 $0, $1, $2, $3;", "=r,r,r,r", *factors)


def _rounded_to(op: tile.MapOp) -> DType | None:
    """The narrow type that all who read a result round it to, the same one."""
    types = {_read_as(use) for use in op.out.uses}
    return types.pop() if len(types) == 1 else None


def _read_as(use: Use) -> DType | None:
    match use.operation:
        case tile.MapOp() as op:
            return narrowed_to(op)
        case tile.StoreOp() | tile.ScatterOp() as op if use.index == 0 and pointer_dtype(op).name in _ONE:
            return pointer_dtype(op)
        case _:
            return None
