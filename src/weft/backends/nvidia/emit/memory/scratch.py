"""Scratch memory of a block as LLVM code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.nvidia.emit.block import i32, shared_pointer
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.ir.dialect import SHARED, integer

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen
from weft.backends.nvidia.ir.scratch import ScratchOp


@EMITTERS.register(ScratchOp)
def emit_scratch(codegen: KernelCodegen, op: ScratchOp) -> None:
    place = shared_pointer(codegen.b, integer(op, SHARED), i32(0), 1)
    codegen.pointers[op.out] = codegen.b.emit("i64", f"ptrtoint {place} to i64")
