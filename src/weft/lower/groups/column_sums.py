"""Groups that work row by row and sum up columns → a kernel of persistent programs, and one that adds up their sums.

graph.group(%x, %dy) {                        tile.kernel @.._rows grid [264] {               (x, dy: 8192 × 768)
  %p = graph.mul %dy, %x                        %s = tile.for %r in this program's rows (%s) {
  %s = graph.sum %p dims=[1] keep                 %x = tile.load %x0[..] : 4x768 ; %dy = …
  %d = graph.sub %dy, %s                →         tile.store %y[..], %dy - tile.reduce sum (%dy * %x) axis 1
  %w = graph.sum %p dims=[0]                      tile.yield %s + %dy * %x }
  %b = graph.sum %dy dims=[0]                   tile.store %parts[%program], tile.reduce sum %s axis 0 }
  graph.yield %d, %w, %b }                    tile.kernel @.._sums     w, b = sums of the parts

What is read of a row is read once: a norm's gradient with those of its weight and bias, an activation's with that of
the bias before it. There are no atomic sums, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute, SSAValue

from weft.ir.expr import Size, floordiv, mod, product, simplify, symbol
from weft.ir.types import DType, Tensor, contiguous_strides, f32, f64, tensor_of, tensor_type
from weft.lower.emit.body import TileValue
from weft.lower.emit.kernel import Kernel
from weft.lower.groups.columns import PART
from weft.lower.groups.few_rows import are_rows_few, lower_apart
from weft.lower.groups.kernel_frame import KernelFrame
from weft.lower.groups.kernels import lower_group
from weft.lower.index_space.domain import Domain
from weft.lower.index_space.evaluate import Address, AddressRecorder, Source
from weft.lower.lowered import Argument, KernelCall, Lowered, made_of_sums
from weft.lower.machine import Machine
from weft.lower.regroup import drop_unused, regroup
from weft.lower.schedule.persistent_rows import Operands, PersistentRows, choose_persistent_rows
from weft.ops.base import Reduction
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.kernel_groups import is_column_sum
from weft.passes.update_in_place import in_place_of
from weft.tile import dialect as tile

_TURN = "turn"
"""The scalar that counts what a program has of several runs of rows."""


def lower_column_sums(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    machine: Machine,
) -> Lowered:
    """Lower a group of which `sums_columns` is true."""
    finished = made_of_sums(group)
    late = [n for n, value in enumerate(group.yielded) if value in finished]
    early = [n for n in range(len(group.yielded)) if n not in late]
    sums = [op for op in group.block.ops if isinstance(op, DimensionReduction) and is_column_sum(op)]
    rows = _rows_of(group, sums, early)
    in_place = {early.index(result): operand for result, operand in in_place_of(group).items() if result in early}
    work = _RowsOfColumns(
        rows,
        f"{name}_rows",
        dict(zip(rows.block.args, inputs, strict=True)),
        [outputs[n] for n in early],
        MappingProxyType(in_place),
        sums[0],
        machine,
    )
    if work.has_few_rows and (apart := lower_apart(group, name, inputs, outputs, (early, late), in_place, machine)):
        return apart
    given = [Argument("input", n) for n in range(len(inputs))]
    written = [Argument("output", n) for n in early if early.index(n) not in in_place]
    parts = [Argument("scratch", n) for n in range(len(sums))]
    first = KernelCall(work.kernel(), (*given, *written, *parts))
    scratch = [Tensor(accumulator(op), (work.schedule.parts, *work.columns)) for op in sums]
    finishing, layouts = _sums_of(group, sums, late, work.schedule.parts)
    operands, layouts = [*given, *parts], [*inputs, *layouts]
    used = drop_unused(finishing)
    read = [layouts[n] for n in used]
    total = lower_group(finishing, f"{name}_sums", read, [outputs[n] for n in late], machine=machine)
    last = KernelCall(total, (*(operands[n] for n in used), *(Argument("output", n) for n in late)))
    return Lowered((first, last), tuple(scratch))


def accumulator(op: Reduction) -> DType:
    """The type in which a sum is kept."""
    return f64 if tensor_of(op.results[0].type).dtype == f64 else f32


def _rows_of(group: GroupOp, sums: Sequence[Reduction], early: Sequence[int]) -> GroupOp:
    """What is done for each row: the results that need no sum of columns, and what is summed up."""
    places = {op: number for number, op in enumerate(group.block.ops)}

    def made(b: GraphBuilder, clone: GroupOp) -> list[SSAValue]:
        values, ops = list(clone.yielded), list(clone.block.ops)
        summed = [ops[places[op]].operands[0] for op in sums]
        wide = [
            value if b.tensor(value).dtype == accumulator(op) else b.cast(value, dtype=accumulator(op))
            for value, op in zip(summed, sums, strict=True)
        ]
        return [*(values[n] for n in early), *wide]

    return regroup(group, made)


def _sums_of(
    group: GroupOp, sums: Sequence[DimensionReduction], late: Sequence[int], parts: int
) -> tuple[GroupOp, list[StridedLayout]]:
    """What adds up the programs' sums, all of them at once, and computes what follows; and how these lie in memory."""
    places = {op: number for number, op in enumerate(group.block.ops)}
    layouts: list[StridedLayout] = []

    def made(b: GraphBuilder, clone: GroupOp) -> list[SSAValue]:
        values, ops = list(clone.yielded), list(clone.block.ops)
        for op in sums:
            old = ops[places[op]]
            shape, dims = tensor_of(op.operands[0].type).shape, op.params["dims"]
            partial = Tensor(accumulator(op), (parts, *(1 for _ in dims[1:]), *shape[len(dims) :]))
            argument = clone.block.insert_arg(tensor_type(partial), len(clone.block.args))
            layouts.append(contiguous(partial))
            before = GraphBuilder(clone.block, before=old)
            total = before.emit("sum", argument, **op.params)
            dtype = tensor_of(old.results[0].type).dtype
            total = total if before.tensor(total).dtype == dtype else before.cast(total, dtype=dtype)
            old.results[0].replace_all_uses_with(total)
            values = [total if value is old.results[0] else value for value in values]
        return [values[n] for n in late]

    return regroup(group, made), layouts


@dataclass
class _RowsOfColumns:
    """The kernel whose programs walk rows, and carry the sums of their columns."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    in_place: MappingProxyType[int, int]
    like: DimensionReduction
    """A sum of columns: its operand has the shape of all."""
    machine: Machine

    def __post_init__(self) -> None:
        self.shape = tensor_of(self.like.operands[0].type).shape
        self.rank = len(self.like.params["dims"])
        self.columns = self.shape[self.rank :]
        self.domain = domain = Domain(self.shape[: self.rank], self.columns)
        while True:
            self.indices = [self._index(value) for value in self.group.yielded]
            recorded = self._record()
            if not domain.split([address.expr for address in recorded]):
                break
        domain.fuse([address.expr for address in recorded])
        addresses = [replace(a, expr=simplify(domain.in_runs(a.expr), domain.run_bounds)) for a in recorded]
        whole = any(isinstance(op, Reduction) for op in self.group.block.ops)
        sums = len(self.group.yielded) - len(self.outputs)
        operands = Operands(self._bytes_of(self.shape), self._bytes_of(self.columns), self._is_dense())
        self.schedule: PersistentRows = choose_persistent_rows(
            domain, addresses, self.machine, sums=sums, operands=operands, whole=whole
        )

    @property
    def has_few_rows(self) -> bool:
        """Whether rows are worked on, of which there are too few for programs that carry sums."""
        rows, columns = product(self.shape[: self.rank]), product(self.columns)
        if not self.outputs or not isinstance(rows, int) or not isinstance(columns, int):
            return False
        sums = len(self.group.yielded) - len(self.outputs)
        return are_rows_few(rows, columns, sum(self._bytes_of(self.shape)), self.schedule.parts, sums)

    def _bytes_of(self, shape: Sequence[Size]) -> tuple[int, ...]:
        """Those of an element of each operand that has all of a shape, and nothing beside."""
        tensors = [tensor_of(each.type) for each in self.layouts if each.uses]
        count = product(shape)
        return tuple(t.dtype.bytes for t in tensors if product(t.shape) == count == product(t.shape[-len(shape) :]))

    def _is_dense(self) -> bool:
        """Whether the rows of every operand lie one after the other."""
        full = [v for v in self.layouts if v.uses and product(tensor_of(v.type).shape) == product(self.shape)]
        return all(self.layouts[value].strides == contiguous_strides(tensor_of(value.type).shape) for value in full)

    def _index(self, value: SSAValue) -> list[Size]:
        """Where a result's element lies: all of it, or the rows alone."""
        shape, rows = tensor_of(value.type).shape, self.domain.row_index
        if shape == self.shape:
            return [*rows, *self.domain.column_index]
        return [*rows, *(0 for _ in shape[self.rank :])]

    def _record(self) -> list[Address]:
        recorder = AddressRecorder(self.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        for number, (value, index) in enumerate(zip(self.group.yielded, self.indices, strict=True)):
            tensor = tensor_of(value.type)
            recorder.at(Source(value, tensor), index)
            layout = self.outputs[number] if number < len(self.outputs) else contiguous(tensor)
            if number < len(self.outputs):
                address = simplify(layout.address(index), self.domain.bounds)
                recorder.addresses.append(Address(address, "store", tensor.dtype.bytes))
        return recorder.addresses

    def kernel(self) -> Kernel:
        schedule, count = self.schedule, len(self.outputs)
        frame = KernelFrame.open(self.group, self.layouts, self.outputs, self.in_place, self.domain, schedule.schedule)
        self.emit, targets = frame.emit, frame.targets
        grid = self._place_columns()
        carried = [self._zeros(value) for value in self.group.yielded[count:]]
        self._walk(carried, targets)
        self._store_sums(carried, targets[count:])
        attributes: dict[str, Attribute] = {"persistent": IntegerAttr(schedule.warps, i64)}
        if schedule.row_warps > 1:
            attributes["row_warps"] = IntegerAttr(schedule.row_warps, i64)
        if schedule.prefetched:
            attributes["prefetched"] = UnitAttr()
        if schedule.rereads:
            attributes["reread"] = UnitAttr()
        return frame.close(self.name, grid, **attributes)

    def _place_columns(self) -> list[Size]:
        """Give columns their axes or programs, and rows the last number of the grid; returns that."""
        emit, schedule, grid = self.emit, self.schedule, list[Size]()
        axes = [run for run in self.domain.column_runs if schedule.capacity_of(run) is not None]
        emit.rank = 1 + len(axes)
        for run in self.domain.column_runs:
            capacity = schedule.capacity_of(run)
            base: Size = 0
            if capacity is None or capacity != run.size:
                scalar = run.name if capacity is None else f"p{len(grid)}"
                emit.scalars[scalar] = emit.program(len(grid))
                blocks = run.size if capacity is None else -(-int(run.size) // capacity)  # type: ignore[arg-type]
                grid.append(blocks)
                base = symbol(scalar) * (capacity or 1)
            if capacity is not None:
                emit.tile_axis(run.name, run.size, 1 + axes.index(run), base, capacity)
        emit.scalars[PART] = emit.program(len(grid))
        return [*grid, schedule.parts]

    def _zeros(self, value: SSAValue) -> TileValue:
        dtype = tensor_of(value.type).dtype
        sides = sorted((axis.position, axis.capacity) for axis in self.emit.axes.values())
        rows = 1 if self.schedule.folds else self.schedule.rows
        type_ = tile.TileType.of([rows, *(capacity for _, capacity in sides)], dtype)
        return TileValue(self.emit.add(tile.ConstantOp.make(0.0, type_)), dtype)

    def _walk(self, carried: list[TileValue], targets: Sequence[SSAValue]) -> None:
        """This program's rows, so many beside each other at a time."""
        emit, schedule, runs = self.emit, self.schedule, self.domain.row_runs
        if not runs:
            self._do_rows(carried, targets)
            return
        if len(runs) > 1:
            self._walk_runs(carried, targets)
            return
        (run,) = runs
        name = f"{run.name}_start"
        first, apart, upper = schedule.turns_of(symbol(PART), run.size)
        with emit.loop(name, upper, schedule.rows, carried) as state:
            emit.tile_axis(run.name, run.size, 0, first + symbol(name) * apart, schedule.rows)
            self._do_rows(state, targets)
            del emit.axes[run.name]

    def _walk_runs(self, carried: list[TileValue], targets: Sequence[SSAValue]) -> None:
        """The rows of several runs, by one number: all programs share them, however few the longest run has."""
        emit, schedule = self.emit, self.schedule
        number, upper = schedule.numbers_of(symbol(PART), self.domain.row_runs, symbol(_TURN))
        with emit.loop(_TURN, upper, 1, carried) as state:
            inner: Size = 1
            for run in reversed(self.domain.row_runs):
                blocks = schedule.blocks_of(run)
                place = mod(floordiv(number, inner), blocks)
                inner = blocks * inner
                scalar = f"{run.name}_start" if run.name == schedule.along else run.name
                emit.scalars[scalar] = emit.scalar(place)
                if run.name == schedule.along:
                    emit.tile_axis(run.name, run.size, 0, symbol(scalar) * schedule.rows, schedule.rows)
            self._do_rows(state, targets)
            del emit.axes[schedule.along or ""]

    def _do_rows(self, state: list[TileValue], targets: Sequence[SSAValue]) -> None:
        emit, count = self.emit, len(self.outputs)
        values = [
            emit.at(Source(v, tensor_of(v.type)), i) for v, i in zip(self.group.yielded, self.indices, strict=True)
        ]
        # All are computed before the first is written, which may be over what others are computed from.
        for number in range(count):
            emit.store(values[number], targets[number], self.outputs[number].address(self.indices[number]))
        for place, value in enumerate(values[count:]):
            assert isinstance(value, TileValue)
            whole = emit.repeated(
                value, [axis.capacity for axis in sorted(emit.axes.values(), key=lambda a: a.position)]
            )
            added = emit.math("add", state[place], self._folded(whole) if self.schedule.folds else whole)
            assert isinstance(added, TileValue)
            state[place] = replace(added, dtype=state[place].dtype)

    def _folded(self, value: TileValue) -> TileValue:
        """The sum of the rows that stand beside each other."""
        return value if self.schedule.rows == 1 else self.emit.reduce_axis(value, "sum", 0, value.dtype)

    def _store_sums(self, carried: Sequence[TileValue], targets: Sequence[SSAValue]) -> None:
        """Add up the rows that stood beside each other, and keep the sums as this program's part."""
        emit = self.emit
        count = product(self.columns)
        layout = contiguous(Tensor(f32, self.columns))
        address = symbol(PART) * count + layout.address(self.domain.column_index)
        for value, target in zip(carried, targets, strict=True):
            emit.store(value if self.schedule.folds else self._folded(value), target, address)
