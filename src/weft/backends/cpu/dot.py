"""Products of tiles on a CPU: a block of accumulators in registers, walked along K.

    for each panel of columns:        b's panel, read in place or copied side by side
        for each block of rows:       a's rows, contiguous along K
            micro-kernel              c (+)= a @ b, in registers

Operands that are loads with fitting strides are read where they lie; all others are first computed into buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.byte_dot import emit_byte_dot, in_bytes, reads_rows
from weft.backends.cpu.clusters import Fill
from weft.backends.cpu.matrix_dot import emit_matrix_dot, in_matrix_tiles, reads_matrix_rows
from weft.backends.cpu.microkernel import Blocking, blocking, panel_kernel, row_kernel, slab_kernel
from weft.backends.cpu.panels import PANEL_GAP, copy_panels, transpose_panel
from weft.backends.cpu.row_groups import row_groups
from weft.backends.llvm.values import V, const, i64, memory_type, scalar_type
from weft.errors import LoweringError
from weft.ir.types import DType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_SIDE = 4
"""Streams of memory that are read side by side: few enough for one set of the first-level cache."""
_WAYS, _SET_BYTES = 7, 4096
"""Lines of one set that stay in an x86's first-level cache beside what passes by, and a distance at which lines share a
set. Other processors have blocks of fewer rows than their caches have ways."""
_LONGEST_SUM = 512
_LONGEST_SUM_OF_FEW_ROWS = 128
_LONGEST_SUM_OF_256_BITS = 192
"""Terms that are summed up at a time: sums of sums lose fewer digits. Few rows wait for memory, not for additions, and
products with vectors of 256 bits are as quick in parts as long as the library's."""
_TERMS_OF_A_TURN = 4
"""Terms that a kernel adds in a turn of its loop."""
_MOST_POINTERS = 8
"""Rows of a micro-kernel where there are few: more would leave most of its last block empty."""
_FEW_BLOCKS = 2
"""Up to so many blocks of rows, b's elements are used too rarely to be worth a copy."""


@dataclass(frozen=True)
class _Matrix:
    """An operand in memory: its element (i, j) lies at `pointer + i * rows + j * columns`."""

    pointer: V
    rows: V
    columns: V
    memory: DType


def emit_dot(codegen: KernelCodegen, op: tile.DotOp) -> None:
    """Add the code of a product; its result is in `codegen.buffers`."""
    if in_matrix_tiles(codegen, op):
        emit_matrix_dot(codegen, op)
    elif in_bytes(op):
        emit_byte_dot(codegen, op)
    else:
        _Product(codegen, op).emit()


def buffered_operands(codegen: KernelCodegen, op: tile.DotOp) -> list[SSAValue]:
    """The operands that `emit_dot` computes into buffers of their own."""
    if in_matrix_tiles(codegen, op):
        return [] if reads_matrix_rows(codegen, op) else [op.a]
    if in_bytes(op):
        return [] if reads_rows(codegen, op) else [op.a]
    product = _Product(codegen, op)
    return [v for v, direct in ((op.a, product.reads_a), (op.b, product.reads_b)) if not direct]


def accumulates_in_place(value: SSAValue, argument: SSAValue) -> bool:
    """Whether a product that a loop carries on may be summed where the loop's last turn left it.

    So it is where the product adds to that, perhaps scaled element by element, and nothing else reads it.
    """
    if not isinstance(value, OpResult) or not isinstance(value.op, tile.DotOp) or value.op.accumulator is None:
        return False
    current = value.op.accumulator
    while current is not argument:
        if not isinstance(current, OpResult) or not isinstance(current.op, tile.MapOp) or not current.has_one_use():
            return False
        shape = tile.tile_type(argument).sizes
        same = [arg for arg in current.op.args if tile.tile_type(arg).sizes == shape]
        if len(same) != 1:
            return False
        current = same[0]
    return argument.has_one_use() and tile.tile_type(value) == tile.tile_type(argument)


class _Product:
    """The construction of one product."""

    def __init__(self, codegen: KernelCodegen, op: tile.DotOp) -> None:
        self.codegen = codegen
        self.op = op
        type_ = tile.tile_type(op.out)
        self.dtype = type_.dtype
        self.capacity = type_.sizes
        self.depth = tile.tile_type(op.a).sizes[1]
        self.in_panels = len(tile.tile_type(op.b).sizes) == 3
        self.block = self._blocking()
        # The kernels of few rows hold 4 by 4 sums or factors, if there are 32 registers.
        self.few_side = _SIDE if codegen.target.registers == 32 else _SIDE // 2
        few = min(self.block.rows, _MOST_POINTERS)
        # Blocks of rows that walk along panels may have any height up to the most, so that they are even.
        self.even = self.in_panels and codegen.target.is_x86
        self.few_rows = self.capacity[0] <= (few if self.even else _FEW_BLOCKS * few)
        if self.few_rows:
            self.block = replace(self.block, rows=few)

    def _blocking(self) -> Blocking:
        """The target's block, cut down until its columns divide the result's."""
        best = blocking(self.codegen.target, self.dtype)
        columns = self.capacity[1]
        if self.in_panels:
            width = tile.tile_type(self.op.b).sizes[2]
            if width % best.lanes:
                raise LoweringError(f"panels of {width} columns are not made of vectors of {best.lanes} elements")
            return Blocking(max(1, best.rows * best.vectors // (width // best.lanes)), width // best.lanes, best.lanes)
        lanes = best.lanes
        while columns % lanes:
            lanes //= 2
        vectors = next(v for v in range(best.vectors, 0, -1) if columns % (v * lanes) == 0)
        return Blocking(best.rows, vectors, lanes)

    # -- operands --------------------------------------------------------------------------------------------------

    def _load(self, value: SSAValue) -> tile.LoadOp | None:
        """The load that an operand is, unless the operand is already in a buffer."""
        if value in self.codegen.buffers or not isinstance(value, OpResult) or not isinstance(value.op, tile.LoadOp):
            return None
        return value.op

    @property
    def reads_a(self) -> bool:
        """Whether a is read where it lies. Rows that fall into one set of the cache are copied close together."""
        load = self._load(self.op.a)
        if load is None or _pointer_dtype(load) != self.dtype or (load.strides.data[1] != 1 and self.depth != 1):
            return False
        if self.few_rows or self.block.rows <= _WAYS:
            return True
        stride = load.strides.data[0]
        if not isinstance(stride, int):
            return False
        apart = _SET_BYTES // gcd(stride * self.dtype.bytes, _SET_BYTES)
        return self.block.rows <= _WAYS * apart

    @property
    def reads_b(self) -> bool:
        load = self._load(self.op.b)
        return load is not None and (self.in_panels or 1 in load.strides.data)

    def _matrix(self, value: SSAValue, direct: bool) -> _Matrix:
        codegen = self.codegen
        if direct:
            load = self._load(value)
            assert load is not None
            access = codegen.accesses[load]
            return _Matrix(access.base, access.strides[-2], access.strides[-1], access.dtype)
        buffer = codegen.materialise(value)
        return _Matrix(buffer.pointer, i64(buffer.shape[1]), i64(1), buffer.dtype)

    # -- code ------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        codegen, op = self.codegen, self.op
        self.b = codegen.b
        self.a = self._matrix(op.a, self.reads_a)
        direct = self.reads_b
        self.right = self._matrix(op.b, direct)
        self._place_result()
        self.extents = codegen.extents(op.out)
        b_depth = codegen.extents(op.b)[-2]
        self.turns = codegen.least([codegen.extents(op.a)[1], b_depth], self.depth)
        if self.capacity[1] == 1 and self.right.rows.name == "1":
            self._rows_of_both()
            return
        if self.in_panels:
            self._panels()
        elif self.right.columns.name == "1":
            self._columns(direct)
        elif self.few_rows:
            self._rows_of_both()
        else:
            self._transposed_columns()

    def _place_result(self) -> None:
        codegen, op = self.codegen, self.op
        if op.out not in codegen.buffers:
            codegen.buffers[op.out] = Buffer.allocate(self.b, self.capacity, self.dtype)
        self.result = codegen.buffers[op.out]
        self.keep = const(op.accumulator is not None, "i1")
        if op.accumulator is not None and codegen.buffers.get(op.accumulator) != self.result:
            codegen.block([Fill(op.accumulator, self.result)])

    def _panels(self) -> None:
        """b lies in panels: they are read in place, unless they hold a narrow type and are read often."""
        b, block, codegen = self.b, self.block, self.codegen
        load = self._load(self.op.b)
        assert load is not None
        step = codegen.accesses[load].strides[0]
        convert = self.right.memory != self.dtype and not self.few_rows
        buffer = self._panel() if convert else None
        with b.loop(i64(0), codegen.extents(self.op.b)[0], i64(1)) as panel:
            start = b.gep(self.right.pointer, b.mul(panel, step), memory_type(self.right.memory))
            if buffer is not None:
                copy = copy_panels(codegen.module, block.columns, block.lanes, self.dtype, self.right.memory)
                self._call(copy, buffer, start, i64(block.columns), i64(block.columns), self.turns)
                start = buffer
            memory = self.dtype if convert else self.right.memory
            self._blocks(b.mul(panel, i64(block.columns)), start, i64(block.columns), memory)

    def _columns(self, direct: bool) -> None:
        """b is contiguous along N: with many rows it is copied into panels, from which all read; else it passes by."""
        b, block, right = self.b, self.block, self.right
        if not direct:  # a buffer has room for whole panels
            with b.loop(i64(0), self.extents[1], i64(block.columns)) as n:
                self._blocks(n, b.gep(right.pointer, n, scalar_type(self.dtype)), right.rows, right.memory)
        elif self.few_rows:
            self._slabs()
        else:
            panels = Buffer.allocate(b, (self.depth + PANEL_GAP, self.capacity[1]), self.dtype).pointer
            copy = copy_panels(self.codegen.module, block.columns, block.lanes, self.dtype, right.memory)
            self._call(copy, panels, right.pointer, right.rows, self.extents[1], self.turns)
            with b.loop(i64(0), self.extents[1], i64(block.columns)) as n:
                panel = b.gep(panels, b.mul(n, b.add(self.turns, i64(PANEL_GAP))), scalar_type(self.dtype))
                self._blocks(n, panel, i64(block.columns), self.dtype)

    def _slabs(self) -> None:
        """Few rows, b contiguous along N: some rows of b at a time are added to the result, which stays in memory."""
        b, right = self.b, self.right
        if self.op.accumulator is None:
            self._clear()
        whole = b.binary("and", self.turns, i64(-_SIDE))
        for start, stop, depth in ((i64(0), whole, _SIDE), (whole, self.turns, 1)):
            with b.loop(start, stop, i64(depth)) as k:
                pointer = b.gep(right.pointer, b.mul(k, right.rows), memory_type(right.memory))
                for row, count in self._row_blocks(self.few_side):
                    name = slab_kernel(self.codegen.module, count, depth, self.block.lanes, self.dtype, right.memory)
                    c, a = self.result.address(b, (row, i64(0))), self._rows_from(row, k)
                    self._call(name, c, i64(self.capacity[1]), a, self.a.rows, pointer, right.rows, self.extents[1])

    def _clear(self) -> None:
        count = self.capacity[0] * self.capacity[1] * self.dtype.bytes
        self.b.call("llvm.memset.p0.i64", "void", self.result.pointer, V("i8", "0"), i64(count), const(False, "i1"))

    def _transposed_columns(self) -> None:
        """b is contiguous along K: every panel is transposed on the way into its copy."""
        b, block, right = self.b, self.block, self.right
        side = min(block.lanes, block.columns, 8)
        copy = transpose_panel(self.codegen.module, block.columns, side, self.dtype, right.memory)
        panel = self._panel()
        with b.loop(i64(0), self.extents[1], i64(block.columns)) as n:
            start = b.gep(right.pointer, b.mul(n, right.columns), memory_type(right.memory))
            width = b.intrinsic("smin", b.sub(self.extents[1], n), i64(block.columns))
            self._call(copy, panel, start, right.columns, width, self.turns)
            self._blocks(n, panel, i64(block.columns), self.dtype)

    def _rows_of_both(self) -> None:
        """Few rows, and b contiguous along K as a is: sums of products of vectors along K."""
        b, right = self.b, self.right
        lanes = blocking(self.codegen.target, self.dtype).lanes
        extent = self.extents[1]
        whole = b.binary("and", extent, i64(-_SIDE))
        parts = [(i64(0), whole, _SIDE), (whole, extent, 1)]
        if not extent.name.startswith("%"):
            cut = int(extent.name) // _SIDE * _SIDE
            parts = [
                (i64(start), i64(stop), step) for start, stop, step in ((0, cut, _SIDE), (cut, int(extent.name), 1))
            ]
            parts = [(start, stop, step) for start, stop, step in parts if start != stop]
        for row, count in self._row_blocks(self.few_side):
            for start, stop, step in parts:
                name = row_kernel(self.codegen.module, count, step, lanes, self.dtype, right.memory)
                with b.loop(start, stop, i64(step)) as n:
                    pointer = b.gep(right.pointer, b.mul(n, right.columns), memory_type(right.memory))
                    c, a = self.result.address(b, (row, n)), self._rows_from(row, i64(0))
                    width = i64(self.capacity[1])
                    self._call(name, c, width, a, self.a.rows, pointer, right.columns, self.turns, self.keep)

    def _blocks(self, n: V, pointer: V, stride: V, memory: DType) -> None:
        """All blocks of rows for one panel of columns."""
        b = self.b
        longest = self._longest_sum()
        if self.depth <= longest:
            self._part(n, pointer, stride, memory, i64(0), self.turns, self.keep)
            return
        with b.loop(i64(0), self.turns, i64(longest)) as k:
            turns = b.intrinsic("smin", b.sub(self.turns, k), i64(longest))
            keep = self.keep if self.keep.name == "true" else b.icmp("sgt", k, i64(0))
            start = b.gep(pointer, b.mul(k, stride), memory_type(memory))
            self._part(n, start, stride, memory, k, turns, keep)

    def _longest_sum(self) -> int:
        """Terms of a part of K: parts are even, so that none is much shorter than it might be."""
        if self.few_rows:
            return _LONGEST_SUM_OF_FEW_ROWS
        target = self.codegen.target
        if not (target.is_x86 and target.vector_bits == 256):
            return _LONGEST_SUM
        parts = -(-self.depth // _LONGEST_SUM_OF_256_BITS)
        return -(-self.depth // (parts * _TERMS_OF_A_TURN)) * _TERMS_OF_A_TURN

    def _part(self, n: V, pointer: V, stride: V, memory: DType, k: V, turns: V, keep: V) -> None:
        """A part of K for one panel of columns."""
        block = self.block
        for row, count, blocks in self._row_groups(block.rows):
            part = Blocking(count, block.vectors, block.lanes)
            name = panel_kernel(self.codegen.module, self.codegen.target, part, self.dtype, memory)
            c, a = self.result.address(self.b, (row, n)), self._rows_from(row, k)
            self._call(name, c, i64(self.capacity[1]), a, self.a.rows, pointer, stride, turns, keep, blocks)

    def _rows_from(self, row: V, k: V) -> V:
        """Where the rows of a start: from `row` on, at `k`."""
        b = self.b
        return b.gep(self.a.pointer, b.add(b.mul(row, self.a.rows), k), scalar_type(self.dtype))

    def _row_groups(self, rows: int) -> Iterator[tuple[V, int, V]]:
        return row_groups(self.b, self.extents[0], self.capacity[0], rows, even=self.even)

    def _row_blocks(self, rows: int) -> Iterator[tuple[V, int]]:
        """The blocks of all row groups one by one: the first row and the height."""
        for row, count, blocks in self._row_groups(rows):
            if blocks.name == "1":
                yield row, count
                continue
            with self.b.loop(i64(0), blocks, i64(1)) as block:
                yield self.b.mul(block, i64(count)), count

    def _call(self, name: str, *arguments: V) -> None:
        self.b.do(f"call void @{name}({', '.join(map(str, arguments))})")

    def _panel(self) -> V:
        return Buffer.allocate(self.b, (self.depth, self.block.columns), self.dtype).pointer


def _pointer_dtype(load: tile.LoadOp) -> DType:
    assert isinstance(load.pointer.type, tile.PointerType)
    return load.pointer.type.dtype
