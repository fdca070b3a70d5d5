"""Sums of rows in an order → a program for each result and some columns, which reads its rows some at a time.

    %y = graph.sum_segments %x, %order, %keys, %starts      (x: N × D, y: V × D)

    tile.kernel @parts grid [N/256, D/256]                  tile.kernel @sums grid [V, D/256] {
      the sum of 256 places in order,                         %s = tile.for %k = starts[v] to starts[v + 1] by 8 (%s) {
      if all have one key                              →        %n = tile.load %order[%k ..] : 8
                                                                %s + tile.gather %x[%n, ..] : 8x256 }
                                                              tile.store %y[v, ..], tile.reduce sum %s axis 0 }

A long segment's whole stretches of 256 places are read as their sums: however the rows are spread over results, no
program walks many more than the root of all. Nothing is added in memory, so that sums have the same bits every time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, symbol
from weft.ir.types import DType, Tensor, f32, i64, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.emit.frame import KernelFrame
from weft.lower.emit.kernel import Kernel, group_symbols
from weft.lower.index_space.domain import Domain
from weft.lower.index_space.evaluate import Source
from weft.lower.lowered import Argument, KernelCall, Lowered, anchor_of
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.schedule.schedule import Schedule
from weft.ops.base import GraphOp
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.tile import dialect as tile

STRETCH = 256
"""Places whose sum is made apart if all have one key."""
_COLUMN_BYTES, _MOST_COLUMNS = 512, 256
"""What a program reads of a row: sixteen bytes for each lane of a warp."""
_ROWS, _TILE_BYTES, _MOST_ROWS = 8, 4096, 32
"""Rows that are read at once: more of short ones."""


@dataclass(frozen=True)
class _Sum:
    """A group with such sums, the layouts of what it reads, and where the results go."""

    group: GroupOp
    op: GraphOp
    layouts: dict[SSAValue, StridedLayout]
    output: StridedLayout
    inputs: Sequence[StridedLayout]

    @property
    def rows(self) -> Tensor:
        return tensor_of(self.op.operands[0].type)

    @property
    def wide(self) -> DType:
        """What is added up in."""
        dtype = self.rows.dtype
        return f32 if dtype.is_float and dtype.bits < 32 else dtype

    @property
    def stretches(self) -> Tensor:
        count, columns = self.rows.shape
        return Tensor(self.wide, (floordiv(count, STRETCH), columns))

    @property
    def width(self) -> int:
        columns = self.rows.shape[1]
        most = min(_COLUMN_BYTES // self.rows.dtype.bytes, _MOST_COLUMNS)
        known = columns if isinstance(columns, int) else most
        return max(1, min(most, 1 << max(known - 1, 0).bit_length()))

    @property
    def height(self) -> int:
        return min(_MOST_ROWS, max(_ROWS, _TILE_BYTES // (self.width * self.rows.dtype.bytes)))


def lower_sum_segments(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group with sums of segments, with what is computed from their rows before."""
    op = anchor_of(group)
    assert op is not None
    if list(group.yielded) != [op.results[0]]:
        return Refusal(f"nothing can be computed after {op.name} in its kernel")
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    if any(operand not in layouts for operand in op.operands[1:]):
        return Refusal(f"{op.name} reads from memory which rows belong together")
    problem = _Sum(group, op, layouts, outputs[0], inputs)
    reads = [Argument("input", number) for number in range(len(inputs))]
    parts, sums = Argument("scratch", 0), Argument("output", 0)
    if problem.stretches.shape[0] == 0:
        return Lowered((KernelCall(_sums(problem, f"{name}_sums"), (*reads, sums)),))
    calls = (
        KernelCall(_stretches(problem, f"{name}_parts"), (*reads, parts)),
        KernelCall(_sums(problem, f"{name}_sums"), (*reads, parts, sums)),
    )
    return Lowered(calls, (problem.stretches,))


@dataclass
class _Program:
    """A kernel of some columns, under construction."""

    problem: _Sum
    frame: KernelFrame
    emit: KernelEmitter

    @classmethod
    def of(cls, problem: _Sum, name: str, written: Sequence[DType], programs: Size) -> _Program:
        group = problem.group
        types = [tensor_of(value.type).dtype for value in group.block.args]
        names = group_symbols(group, [*problem.inputs, problem.output])
        frame = KernelFrame.of(name, [*types, *written], names)
        # Rows are named by places in order, columns by themselves.
        count, columns = problem.rows.shape
        domain = Domain([maximum(count, 2), columns], [])
        emit = KernelEmitter(problem.layouts, domain=domain, block=frame.block, scalars=frame.scalars, rank=2)
        emit.pointers = dict(zip(group.block.args, frame.pointers, strict=False))
        emit.pointers |= {pointer: pointer for pointer in frame.pointers}
        emit.scalars["program"] = frame.program(programs)
        width = problem.width
        emit.scalars["strip"] = frame.program(ceildiv(columns, width))
        emit.tile_axis("r1", columns, 1, symbol("strip") * width, width)
        return cls(problem, frame, emit)

    @property
    def column(self) -> Size:
        """The columns of this program, as an index."""
        return self.emit.domain.row_index[1]

    @property
    def written(self) -> list[SSAValue]:
        return self.frame.pointers[len(self.problem.group.block.args) :]

    def number(self, operand: int, place: Size, name: str) -> Size:
        """The integer at a place of an operand, to count from."""
        emit, value = self.emit, self.problem.op.operands[operand]
        (offset,), operands = emit.sizes((self.problem.layouts[value].address([place]),))
        made = tile.NumberOp.create(
            operands=[emit.pointers[value], *operands], attributes={"offset": offset}, result_types=[IndexType()]
        )
        emit.scalars[name] = emit.add(made)
        return symbol(name) + tile.NumberOp.LEAST

    def zeros(self) -> list[TileValue]:
        wide, shape = self.problem.wide, [self.problem.height, self.problem.width]
        zero = tile.ConstantOp.make(0.0 if wide.is_float else 0, tile.TileType.of(shape, wide))
        return [TileValue(self.emit.add(zero), wide)]

    def add_rows(self, state: list[TileValue], first: Size, end: Size) -> None:
        """Add the rows of places from `first` on, some at a time."""
        rows, order = (Source(v, tensor_of(v.type)) for v in self.problem.op.operands[:2])
        emit, place = self.emit, self.emit.domain.row_index[0]
        with self._turns(state, first, end) as carried:
            within = emit.math("lt", emit.position(place, i64), emit.position(end, i64))
            row = emit.index(emit.at(order, [place], within), rows.tensor.shape[0])
            self._add(carried, emit.at(rows, [row, self.column], within))

    def add_stretches(self, state: list[TileValue], first: Size, end: Size, parts: SSAValue) -> None:
        """Add the sums of stretches from number `first` on."""
        address = contiguous(self.problem.stretches).address([self.emit.domain.row_index[0], self.column])
        with self._turns(state, first, end) as carried:
            affine = self.emit.affine(self.emit.resolve(address))
            assert affine is not None, "rows and columns of a tensor that lies in one piece"
            attributes, operands, shape = self.emit.access(*affine)
            type_ = tile.TileType.of(shape, self.problem.wide)
            load = tile.LoadOp.create(operands=[parts, *operands], attributes=attributes, result_types=[type_])
            self._add(carried, TileValue(self.emit.add(load), self.problem.wide))

    @contextmanager
    def _turns(self, state: list[TileValue], first: Size, end: Size) -> Generator[list[TileValue]]:
        """A loop over places, so many of which are an axis of the tiles."""
        height = self.problem.height
        with self.emit.loop("turn", end, height, state, first) as carried:
            self.emit.tile_axis("r0", end, 0, symbol("turn"), height)
            yield carried
            del self.emit.axes["r0"]

    def _add(self, carried: list[TileValue], rows: Value) -> None:
        wide = self.problem.wide
        assert isinstance(rows, TileValue)
        total = self.emit.math("add", carried[0], TileValue(rows.ssa, wide))
        assert isinstance(total, TileValue)
        carried[0] = total

    def store(self, state: list[TileValue], target: SSAValue, address: Size, dtype: DType) -> None:
        total = self.emit.reduce_axis(state[0], "sum", 0, self.problem.wide)
        self.emit.store(self.emit.cast(total, dtype), target, address)


def _stretches(problem: _Sum, name: str) -> Kernel:
    program = _Program.of(problem, name, [problem.wide], problem.stretches.shape[0])
    (target,), stretch = program.written, symbol("program")
    first = stretch * STRETCH
    before = program.number(2, first, "key_first")
    behind = program.number(2, first + STRETCH - 1, "key_last")
    state = program.zeros()
    differs = minimum(behind - before, 1)
    program.add_rows(state, first, first + STRETCH - differs * STRETCH)
    address = contiguous(problem.stretches).address([stretch, program.column])
    program.store(state, target, address, problem.wide)
    return program.frame.finish(Schedule("segments", "r1", problem.width))


def _sums(problem: _Sum, name: str) -> Kernel:
    dtype = problem.rows.dtype
    result = tensor_of(problem.op.results[0].type)
    in_stretches = problem.stretches.shape[0] != 0
    program = _Program.of(problem, name, [*([problem.wide] if in_stretches else []), dtype], result.shape[0])
    (*parts, target), row = program.written, symbol("program")
    first, end = program.number(3, row, "first"), program.number(3, row + 1, "end")
    state = program.zeros()
    head = minimum(end, ceildiv(first, STRETCH) * STRETCH) if parts else end
    program.add_rows(state, first, head)
    for sums in parts:
        program.add_stretches(state, ceildiv(first, STRETCH), floordiv(end, STRETCH), sums)
        program.add_rows(state, maximum(head, floordiv(end, STRETCH) * STRETCH), end)
    program.store(state, target, problem.output.address([row, program.column]), dtype)
    return program.frame.finish(Schedule("segments", "r1", problem.width))
