"""Products of tiles with packed weights of 8 bits, on processors that multiply four of them at a time.

i8 rows:    sums in i32, straight into the result
f32 rows:   each split into digits of 8 bits; the digits' sums joined, and scaled by the row's factor
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.ir import OpResult

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.byte_kernels import DIGITS, byte_kernel, join_kernel, split_kernel
from weft.backends.cpu.clusters import Fill
from weft.backends.cpu.microkernel import blocking
from weft.backends.cpu.row_groups import row_groups
from weft.backends.llvm.builder import V, const, i64, scalar_type
from weft.ir.types import f32, i8, i32
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_MOST_ROWS = 8
"""Rows that a kernel reads by a pointer each."""
_LINE = 64


def in_bytes(op: tile.DotOp) -> bool:
    """Whether b lies in panels with neighbours along K together."""
    return len(tile.tile_type(op.b).sizes) == 4


def reads_rows(codegen: KernelCodegen, op: tile.DotOp) -> bool:
    """Whether a is read where it lies: it is a load of its own type, contiguous along K."""
    value = op.a
    if value in codegen.buffers or not isinstance(value, OpResult) or not isinstance(load := value.op, tile.LoadOp):
        return False
    assert isinstance(load.pointer.type, tile.PointerType)
    type_ = tile.tile_type(value)
    return load.pointer.type.dtype == type_.dtype and (load.strides.data[1] == 1 or type_.sizes[1] == 1)


def emit_byte_dot(codegen: KernelCodegen, op: tile.DotOp) -> None:
    """Add the code of a product; its result is in `codegen.buffers`."""
    b, type_ = codegen.b, tile.tile_type(op.out)
    if reads_rows(codegen, op):
        assert isinstance(op.a, OpResult)
        access = codegen.accesses[op.a.op]
        rows, stride = access.base, access.strides[0]
    else:
        buffer = codegen.materialise(op.a)
        rows, stride = buffer.pointer, i64(buffer.shape[1])
    if op.out not in codegen.buffers:
        codegen.buffers[op.out] = Buffer.allocate(b, type_.sizes, type_.dtype)
    result = codegen.buffers[op.out]
    if op.accumulator is not None and codegen.buffers.get(op.accumulator) != result:
        codegen.block([Fill(op.accumulator, result)])
    keep = const(op.accumulator is not None, "i1")
    extent, turns = codegen.extents(op.a)
    height, depth = tile.tile_type(op.a).sizes
    width = tile.tile_type(op.b).sizes[2]
    is_split = type_.dtype == f32
    product = _Product(codegen, width, turns, extent, height)
    factors = sums = None
    if is_split:
        padded = -(-depth // _LINE) * _LINE
        digits = Buffer.allocate(b, (height * DIGITS, padded), i8).pointer
        factors = Buffer.allocate(b, (height,), f32).pointer
        sums = Buffer.allocate(b, (height * DIGITS, width), i32).pointer
        product.call(split_kernel(codegen.module), digits, i64(padded), factors, rows, stride, extent, turns)
        rows, stride = digits, i64(padded)
    assert isinstance(op.b, OpResult)
    panels = codegen.accesses[op.b.op]
    with b.loop(i64(0), codegen.extents(op.b)[0], i64(1)) as panel:
        start = b.gep(panels.base, b.mul(panel, panels.strides[0]), "i8")
        target = b.gep(result.pointer, b.mul(panel, i64(width)), scalar_type(type_.dtype))
        if factors is None or sums is None:
            product.rows(target, i64(type_.sizes[1]), rows, stride, start, keep)
        else:
            product.rows(sums, i64(width), rows, stride, start, const(False, "i1"), DIGITS)
            join = join_kernel(codegen.module, width, product.block.lanes)
            product.call(join, target, i64(type_.sizes[1]), sums, factors, extent, keep)


class _Product:
    """The construction of one product."""

    def __init__(self, codegen: KernelCodegen, width: int, turns: V, extent: V, height: int) -> None:
        self.codegen = codegen
        best = blocking(codegen.target, i32)
        self.block = replace(best, rows=min(best.rows, _MOST_ROWS), vectors=width // best.lanes)
        self.turns, self.extent, self.height = turns, extent, height

    def rows(self, c: V, c_stride: V, a: V, a_stride: V, panel: V, keep: V, times: int = 1) -> None:
        """All rows for one panel of columns; a row may stand for several."""
        b, codegen = self.codegen.b, self.codegen
        extent = b.mul(self.extent, i64(times))
        for row, count, blocks in row_groups(b, extent, self.height * times, self.block.rows):
            name = byte_kernel(codegen.module, codegen.target, replace(self.block, rows=count))
            place, source = b.gep(c, b.mul(row, c_stride), "i32"), b.gep(a, b.mul(row, a_stride), "i8")
            self.call(name, place, c_stride, source, a_stride, panel, self.turns, keep, blocks)

    def call(self, name: str, *arguments: V) -> None:
        self.codegen.b.do(f"call void @{name}({', '.join(map(str, arguments))})")
