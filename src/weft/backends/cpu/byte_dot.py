"""Products of tiles with packed weights of 8 bits, on processors that add up four products at a time, or pairs of them.

i8, u8 rows:      sums in i32, straight into the result
i16, f32 rows:    each first split into digits of 8 bits; rows of f32 have a factor then, which scales their sums

Pairs are those of an x86 without VNNI (`CpuTarget.multiplies_pairs`), and come with rows of integers alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.ir import OpResult

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.byte_kernels import DIGITS, byte_kernel, join_digits, split_floats, split_integers
from weft.backends.cpu.dot_rows import result_of, rows_of
from weft.backends.cpu.matrix_dot import MatrixRows, multiply_in_tiles
from weft.backends.cpu.matrix_kernels import MATRIX_COLUMNS
from weft.backends.cpu.microkernel import Blocking, blocking
from weft.backends.cpu.row_groups import row_groups
from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, const, i64, scalar_type
from weft.ir.types import DType, f32, i8, i16, i32, u8
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_MOST_ROWS = 8
"""Rows of digits that a kernel reads by a pointer each."""
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
    rows, stride = rows_of(codegen, op, direct=reads_rows(codegen, op))
    result, keep = result_of(codegen, op)
    extent, turns = codegen.extents(op.a)
    left, (height, depth) = tile.tile_type(op.a).dtype, tile.tile_type(op.a).sizes
    width = tile.tile_type(op.b).sizes[2]
    factors = V("ptr", "null")
    if left not in (i8, u8):
        padded = -(-depth // _LINE) * _LINE
        digits = Buffer.allocate(b, (height * DIGITS[left], padded), i8).pointer
        if left == i16:
            _call(b, split_integers(codegen.module), digits, i64(padded), rows, stride, extent, turns)
        else:
            factors = Buffer.allocate(b, (height,), f32).pointer
            _call(b, split_floats(codegen.module), digits, i64(padded), factors, rows, stride, extent, turns)
        rows, stride = digits, i64(padded)
    assert isinstance(op.b, OpResult)
    panels = codegen.accesses[op.b.op]
    block = _blocking(codegen, width, left)
    row_size, element = i64(type_.sizes[1]), scalar_type(type_.dtype)
    if in_tiles(codegen, op):
        lines = b.mul(extent, i64(DIGITS[left]))
        sums = Buffer.allocate(b, (height * DIGITS[left], type_.sizes[1]), i32).pointer
        held = codegen.extents(op.b)[0]
        given = MatrixRows(rows, stride, lines, height * DIGITS[left], turns)
        multiply_in_tiles(codegen, sums, row_size, given, panels.base, panels.strides[0], held, const(False, "i1"), i8)
        joined = join_digits(codegen.module, block.lanes, left)
        columns = b.mul(held, i64(width))
        _call(b, joined, result.pointer, sums, row_size, extent, columns, keep, factors)
        return
    with b.loop(i64(0), codegen.extents(op.b)[0], i64(1)) as panel:
        start = b.gep(panels.base, b.mul(panel, panels.strides[0]), "i8")
        result_panel = b.gep(result.pointer, b.mul(panel, i64(width)), element)
        for row, count, blocks in row_groups(b, extent, height, block.rows):
            one = blocks.name == "1"
            name = byte_kernel(codegen.module, codegen.target, replace(block, rows=count), left, one=one)
            place = b.gep(result_panel, b.mul(row, row_size), element)
            source = b.gep(rows, b.mul(row, b.mul(stride, i64(DIGITS[left]))), "i8")
            scales = factors if factors.name == "null" else b.gep(factors, row, "float")
            _call(b, name, place, row_size, source, stride, start, turns, keep, blocks, scales)


def in_tiles(codegen: KernelCodegen, op: tile.DotOp) -> bool:
    """Whether rows of digits are so many that matrix tiles multiply them, where there are such."""
    height = tile.tile_type(op.a).sizes[0] * DIGITS[tile.tile_type(op.a).dtype]
    wide = tile.tile_type(op.b).sizes[2] == MATRIX_COLUMNS
    return codegen.target.has_matrix_tiles and wide and height > _MOST_ROWS


def _blocking(codegen: KernelCodegen, width: int, left: DType) -> Blocking:
    """The block of the result whose digits' sums fill the register file."""
    best = blocking(codegen.target, i32)
    most = _MOST_ROWS if codegen.target.registers == 32 or not codegen.target.multiplies_pairs else _MOST_ROWS // 2
    rows = max(1, min(best.rows, most) // DIGITS[left])
    return replace(best, rows=rows, vectors=width // best.lanes)


def _call(b: Function, name: str, *arguments: V) -> None:
    b.do(f"call void @{name}({', '.join(map(str, arguments))})")
