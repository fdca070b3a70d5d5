"""Products of tiles with weights in panels that an x86's matrix tiles read: rows of bf16, i8 or u8, where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import OpResult

from weft.backends.cpu.dot_rows import result_of, rows_of
from weft.backends.cpu.matrix_kernels import MATRIX_COLUMNS, MATRIX_ROWS, elements_of_step, matrix_kernel, narrow_rows
from weft.backends.cpu.row_groups import row_groups
from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64
from weft.ir.types import DType, bf16, i8, u8
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_LINE = 64


def in_matrix_tiles(codegen: KernelCodegen, op: tile.DotOp) -> bool:
    """Whether b lies in panels for matrix tiles, and the rows of a are of the same type."""
    weights = _weights_type(op)
    if weights == bf16:
        return True
    wide = weights == i8 and tile.tile_type(op.b).sizes[2] == MATRIX_COLUMNS
    return wide and tile.tile_type(op.a).dtype in (i8, u8) and codegen.target.has_matrix_tiles


def reads_matrix_rows(codegen: KernelCodegen, op: tile.DotOp) -> bool:
    """Whether the rows of a are read where they lie: contiguous along K, of which there are whole steps."""
    value, narrow = op.a, _rows_type(op)
    if value in codegen.buffers or not isinstance(value, OpResult) or not isinstance(load := value.op, tile.LoadOp):
        return False
    assert isinstance(load.pointer.type, tile.PointerType)
    depth = load.extents.data[1]
    whole = isinstance(depth, int) and depth % elements_of_step(narrow) == 0
    return load.pointer.type.dtype == narrow and load.strides.data[1] == 1 and whole


def emit_matrix_dot(codegen: KernelCodegen, op: tile.DotOp) -> None:
    """Add the code of a product; its result is in `codegen.buffers`."""
    b, type_, narrow = codegen.b, tile.tile_type(op.out), _rows_type(op)
    step = elements_of_step(narrow)
    direct = reads_matrix_rows(codegen, op)
    rows, stride = rows_of(codegen, op, direct=direct)
    result, keep = result_of(codegen, op)
    extent, turns = codegen.extents(op.a)
    height, depth = tile.tile_type(op.a).sizes
    if not direct:
        padded = -(-depth // step) * step + _LINE // narrow.bytes  # rows do not all fall into one set of the cache
        copied = b.alloca("i8", height * padded * narrow.bytes)
        kind = tile.tile_type(op.a).dtype
        _call(b, narrow_rows(codegen.module, kind, narrow), copied, i64(padded), rows, stride, extent, turns)
        rows, stride = copied, i64(padded)
    assert isinstance(op.b, OpResult)
    panels = codegen.accesses[op.b.op]
    given = MatrixRows(rows, stride, extent, height, turns)
    held, row_size = codegen.extents(op.b)[0], i64(type_.sizes[1])
    multiply_in_tiles(codegen, result.pointer, row_size, given, panels.base, panels.strides[0], held, keep, narrow)


@dataclass(frozen=True)
class MatrixRows:
    """Rows that are multiplied: where they lie, how far apart, how many of how many that there may be, and K."""

    pointer: V
    stride: V
    count: V
    capacity: int
    depth: V


def multiply_in_tiles(
    codegen: KernelCodegen, sums: V, stride: V, rows: MatrixRows, b: V, panel: V, panels: V, keep: V, dtype: DType
) -> None:
    """Add the code of `sums (+)= rows @ b`, of panels that are `panel` elements apart; sums are of 32 bits."""
    f, step = codegen.b, elements_of_step(dtype)
    steps = f.binary("udiv", f.add(rows.depth, i64(step - 1)), i64(step))
    a_bytes, panel_bytes = f.mul(rows.stride, i64(dtype.bytes)), f.mul(panel, i64(dtype.bytes))
    for row, count, blocks in row_groups(f, rows.count, rows.capacity, MATRIX_ROWS):
        place = f.gep(sums, f.mul(row, stride), "i32")
        source = f.gep(rows.pointer, f.mul(row, a_bytes), "i8")
        name = matrix_kernel(codegen.module, count, dtype)
        _call(f, name, place, stride, source, a_bytes, b, panel_bytes, panels, steps, keep, blocks)


def _rows_type(op: tile.DotOp) -> DType:
    """What rows are multiplied as: as bf16 if the weights are, and else as they are."""
    return bf16 if _weights_type(op) == bf16 else tile.tile_type(op.a).dtype


def _weights_type(op: tile.DotOp) -> DType | None:
    """The type of weights in panels with neighbours along K together, as memory holds them."""
    if len(tile.tile_type(op.b).sizes) != 4 or not isinstance(op.b, OpResult):
        return None
    assert isinstance(op.b.op, tile.LoadOp) and isinstance(op.b.op.pointer.type, tile.PointerType)
    return op.b.op.pointer.type.dtype


def _call(b: Function, name: str, *arguments: V) -> None:
    b.do(f"call void @{name}({', '.join(map(str, arguments))})")
