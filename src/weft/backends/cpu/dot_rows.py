"""What dots with packed weights begin with: the rows of the left operand, and the buffer of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import OpResult

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.clusters import Fill
from weft.backends.llvm.values import V, const, i64
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


def rows_of(codegen: KernelCodegen, op: tile.DotOp, *, direct: bool) -> tuple[V, V]:
    """Where the rows of a begin, and the elements from one to the next: where they lie (`direct`), or in a buffer."""
    if direct:
        assert isinstance(op.a, OpResult)
        access = codegen.accesses[op.a.op]
        return access.base, access.strides[0]
    buffer = codegen.materialise(op.a)
    return buffer.pointer, i64(buffer.shape[1])


def result_of(codegen: KernelCodegen, op: tile.DotOp) -> tuple[Buffer, V]:
    """The buffer of the result, with what is added to in it; and whether it is added to."""
    type_ = tile.tile_type(op.out)
    if op.out not in codegen.buffers:
        codegen.buffers[op.out] = Buffer.allocate(codegen.b, type_.sizes, type_.dtype)
    result = codegen.buffers[op.out]
    if op.accumulator is not None and codegen.buffers.get(op.accumulator) != result:
        codegen.block([Fill(op.accumulator, result)])
    return result, const(op.accumulator is not None, "i1")
