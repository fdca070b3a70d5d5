"""Indices, numbers and pointers as LLVM code: what is the same in all threads of a block, or numbers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.cast import emit_cast
from weft.backends.llvm.values import i64 as i64_of
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import address_of, load_chunk
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.scratch import space_of
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp
from weft.ir.types import i64
from weft.tile import dialect as tile
from weft.tile import pointer_ops

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.NumberOp)
def emit_number(codegen: KernelCodegen, op: tile.NumberOp) -> None:
    b, dtype = codegen.b, pointer_dtype(op)
    place = codegen.size(op.offset.data[0], op.indices)
    address = address_of(b, codegen.pointers[op.pointer], dtype.bytes, place)
    (value,) = load_chunk(b, address, dtype, 1, None, space_of(op.pointer))
    number = b.intrinsic("smax", emit_cast(b, value, dtype, i64), i64_of(-op.MOST))
    codegen.scalars[op.out] = b.sub(b.intrinsic("smin", number, i64_of(op.MOST)), i64_of(op.LEAST))


@EMITTERS.register(pointer_ops.IndexOp)
def emit_index(codegen: KernelCodegen, op: pointer_ops.IndexOp) -> None:
    (codegen.scalars[op.out],) = codegen.tiles[op.value]


@EMITTERS.register(pointer_ops.PointerOp)
def emit_pointer(codegen: KernelCodegen, op: pointer_ops.PointerOp) -> None:
    (codegen.pointers[op.out],) = codegen.tiles[op.value]


@EMITTERS.register(pointer_ops.AddressOp)
def emit_address(codegen: KernelCodegen, op: pointer_ops.AddressOp) -> None:
    codegen.tiles[op.out] = [codegen.pointers[op.pointer]]


@EMITTERS.register(AffineApplyOp)
def emit_affine_apply(codegen: KernelCodegen, op: AffineApplyOp) -> None:
    codegen.scalars[op.out] = codegen.size(op.value.data[0], op.indices)


_REGISTERS = {
    "number": "ctaid.x",
    "count": "nctaid.x",
    "rank": "cluster.ctarank",
    "cluster": "clusterid.x",
    "clusters": "nclusterid.x",
    "warp": "tid.x",
}
"""The special registers that number blocks, clusters and threads."""


@EMITTERS.register(BlockNumberOp)
def emit_block_number(codegen: KernelCodegen, op: BlockNumberOp) -> None:
    b, kind = codegen.b, op.kind.data
    number = b.call(f"llvm.nvvm.read.ptx.sreg.{_REGISTERS[kind]}", "i32")
    number = b.binary("lshr", number, i32(5)) if kind == "warp" else number
    codegen.scalars[op.out] = b.convert("zext", number, "i64")
