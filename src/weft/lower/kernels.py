"""Groups of elementwise ops, movements and reductions → one tile kernel.

graph.group(%x) {                      tile.kernel @softmax grid [s0] {
  %m = graph.max(%x) dims=[1] keep       %r = tile.program 0
  %d = graph.sub(%x, %m)                 %x = tile.load %x0[d0*1000] : 1x1000
  %e = graph.exp(%d)                →    %m = tile.reduce max %x axis 0
  %s = graph.sum(%e) dims=[1] keep       %e = tile.map exp(%x - %m)
  %y = graph.div(%e, %s)                 %s = tile.reduce sum %e axis 0
  graph.yield %y                         tile.store %y0[d0*1000], %e / %s
}                                      }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as every
from types import MappingProxyType
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Block, Region, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import Expr, Size, ceildiv, minimum, product, simplify, substitute, symbol, symbols_of
from weft.ir.types import element_type, f32, f64, i64, tensor_of
from weft.lower.domain import Domain, Run, Variable
from weft.lower.emit import KernelEmitter, TileValue, register_dtype
from weft.lower.evaluate import Address, AddressRecorder, Layout, Source, finish
from weft.lower.schedule import Blocks, Schedule, choose_schedule, contiguous_bytes
from weft.ops.base import GraphOp, Reduction
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.reduce import DimensionReduction
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

_SUMMED_IN_TURN = 128
_MOST_UNROLLED = 16
"""Columns of a window that are laid out one after the other: of more, LLVM reads all before it uses the first."""


@dataclass(frozen=True)
class Kernel:
    """A lowered group: the tile kernel, the sizes it takes after its pointers, and the schedule it was given."""

    op: tile.KernelOp
    symbols: tuple[str, ...]
    schedule: Schedule | Blocks


def lower_group(
    group: GroupOp,
    name: str,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    in_place: Mapping[int, int] = MappingProxyType({}),
) -> Kernel:
    """Lower a group whose operands and results have the given layouts; `in_place` results are written over operands."""
    layouts: dict[SSAValue, Layout] = dict(zip(group.block.args, inputs, strict=True))
    reductions = [op for op in group.block.ops if isinstance(op, Reduction)]
    domain = _domain(group, reductions)
    indices = [_output_index(value, domain, reductions) for value in group.yielded]

    while True:
        recorder = _record(group, layouts, outputs, domain, indices)
        if not domain.split([address.expr for address in recorder]):
            break
        indices = [_output_index(value, domain, reductions) for value in group.yielded]
    domain.fuse([address.expr for address in recorder])
    addresses = [
        replace(address, expr=simplify(domain.in_runs(address.expr), domain.run_bounds)) for address in recorder
    ]
    indexed = any(COMBINERS[op.KIND].indexed for op in reductions)
    if not indexed:  # columns may be combined in any order: those that lie one after the other come last
        domain.column_runs.sort(key=lambda run: contiguous_bytes(run, addresses))
    window = len(reductions) == 1 and not isinstance(reductions[0], DimensionReduction)
    schedule = choose_schedule(domain, addresses, indexed=indexed, window=window)
    if schedule.mode == "taps":
        domain.column_runs = [Run((variable,)) for variable in domain.columns]
    return _Lowering(group, name, layouts, outputs, in_place, domain, indices, reductions, schedule).kernel()


def _domain(group: GroupOp, reductions: Sequence[Reduction]) -> Domain:
    if not reductions:
        return Domain(tensor_of(group.yielded[0].type).shape, ())
    first = reductions[0]
    tensors = [tensor_of(operand.type) for operand in first.operands]
    rule: Any = type(first)
    columns = rule.ranges(*tensors, **first.params)
    if isinstance(first, DimensionReduction):
        dims = first.params["dims"]
        return Domain([size for d, size in enumerate(tensors[0].shape) if d not in dims], columns)
    return Domain(tensor_of(first.results[0].type).shape, columns)


def _output_index(value: SSAValue, domain: Domain, reductions: Sequence[Reduction]) -> list[Size]:
    """Where an output's element lies, in terms of the domain: all of it, or the rows alone."""
    shape = tensor_of(value.type).shape
    rows = domain.row_index
    if not reductions or not isinstance(reductions[0], DimensionReduction):
        if shape != tuple(domain.row_sizes):
            raise LoweringError(f"a group's outputs have one shape, got {shape} beside {tuple(domain.row_sizes)}")
        return list(rows)
    first = reductions[0]
    full = tensor_of(first.operands[0].type).shape
    dims: tuple[int, ...] = first.params["dims"]
    if shape == full and any(full[d] != 1 for d in dims):
        row, column = iter(rows), dict(zip(dims, domain.column_index, strict=True))
        return [column[d] if d in column else next(row) for d in range(len(full))]
    if shape == tuple(domain.row_sizes):
        return list(rows)
    if shape == tuple(1 if d in dims else size for d, size in enumerate(full)):
        row = iter(rows)
        return [0 if d in dims else next(row) for d in range(len(full))]
    raise LoweringError(f"an output of shape {shape} does not lie in the group's rows or columns")


def _is_full(index: Sequence[Size], domain: Domain) -> bool:
    columns = {variable.name for variable in domain.columns}
    return any(symbols_of(position) & columns for position in index)


def _record(
    group: GroupOp,
    layouts: dict[SSAValue, Layout],
    outputs: Sequence[Layout],
    domain: Domain,
    indices: Sequence[Sequence[Size]],
) -> list[Address]:
    recorder = AddressRecorder(layouts, space=domain.bounds, columns=domain.column_index)
    for value, layout, index in zip(group.yielded, outputs, indices, strict=True):
        tensor = tensor_of(value.type)
        recorder.at(Source(value, tensor), index)
        address = simplify(layout.address(index), domain.bounds)
        recorder.addresses.append(Address(address, "store", tensor.dtype.bytes))
    return recorder.addresses


def group_symbols(group: GroupOp, layouts: Sequence[Layout]) -> tuple[str, ...]:
    """The symbolic sizes that a kernel made of the group may need."""
    names: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, tuple):
            for item in cast("tuple[Any, ...]", value):
                collect(item)
        elif isinstance(value, Expr):
            names.update(value.symbols)

    for value in (*group.block.args, *group.yielded):
        collect(tensor_of(value.type).shape)
    for op in group.block.ops:
        for result in op.results:
            collect(tensor_of(result.type).shape)
        if isinstance(op, GraphOp):
            collect(tuple(op.params.values()))
    for layout in layouts:
        collect((*layout.strides, layout.offset))
    return tuple(sorted(names))


@dataclass
class _Lowering:
    """The construction of one kernel."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, Layout]
    outputs: Sequence[Layout]
    in_place: Mapping[int, int]
    domain: Domain
    indices: Sequence[Sequence[Size]]
    reductions: Sequence[Reduction]
    schedule: Schedule

    def kernel(self) -> Kernel:
        names = group_symbols(self.group, [*self.layouts.values(), *self.outputs])
        arguments = self.group.block.args
        written = [value for result, value in enumerate(self.group.yielded) if result not in self.in_place]
        values = [*arguments, *written]
        pointer_types = [tile.PointerType(element_type(tensor_of(value.type).dtype)) for value in values]
        block = Block(arg_types=[*pointer_types, *(IndexType() for _ in names)])
        self.emit = emit = _GroupEmitter(
            self.layouts,
            domain=self.domain,
            block=block,
            pointers=dict(zip(arguments, block.args, strict=False)),
            scalars=dict(zip(names, block.args[len(values) :], strict=True)),
            schedule=self.schedule,
        )
        own = iter(block.args[len(arguments) : len(values)])
        self.targets = [
            block.args[self.in_place[result]] if result in self.in_place else next(own)
            for result in range(len(self.group.yielded))
        ]
        emit.pointers |= {target: target for target in self.targets}
        grid = self._place_rows()
        getattr(self, f"_{self.schedule.mode}")()
        block.add_op(tile.ReturnOp.create())
        op = tile.KernelOp.create(
            attributes={
                "sym_name": StringAttr(self.name),
                "grid": tile.Sizes(tuple(grid)),
                "symbols": ArrayAttr(StringAttr(name) for name in names),
                "schedule": StringAttr(str(self.schedule)),
            },
            regions=[Region(block)],
        )
        return Kernel(op, names, self.schedule)

    def _place_rows(self) -> list[Size]:
        """Give every row run a program number or an axis; returns the grid."""
        emit, schedule = self.emit, self.schedule
        emit.rank = 2 if schedule.outer or (schedule.mode == "rows" and len(self.domain.column_runs) == 2) else 1
        grid: list[Size] = []
        for run in self.domain.row_runs:
            capacity = {schedule.vector: schedule.capacity, schedule.outer: schedule.outer_capacity}.get(run.name)
            if capacity is not None and run.size == capacity:
                base: Size = 0
            else:
                program = tile.ProgramOp.create(
                    attributes={"axis": IntegerAttr(len(grid), i64_attr)}, result_types=[IndexType()]
                )
                emit.add(program)
                scalar = run.name if capacity is None else f"p{len(grid)}"
                emit.scalars[scalar] = program.out
                grid.append(run.size if capacity is None else ceildiv(run.size, capacity))
                base = symbol(scalar) * (capacity or 1)
            if capacity is not None:
                position = emit.rank - 1 if run.name == schedule.vector else 0
                emit.tile_axis(run.name, run.size, position, base, capacity)
        return grid

    def _store(self, only_full: bool | None = None) -> None:
        outputs = [
            (self.emit.at(Source(value, tensor_of(value.type)), index), target, layout.address(index))
            for value, layout, index, target in zip(
                self.group.yielded, self.outputs, self.indices, self.targets, strict=True
            )
            if only_full is None or _is_full(index, self.domain) == only_full
        ]
        # All are computed before the first is written, which may be over what others are computed from.
        for element, target, address in outputs:
            self.emit.store(element, target, address)

    def _pointwise(self) -> None:
        self._store()

    def _rows(self) -> None:
        runs = self.domain.column_runs
        for position, run in enumerate(runs):
            assert isinstance(run.size, int)
            self.emit.tile_axis(run.name, run.size, self.emit.rank - len(runs) + position, 0, run.size)
        self._store()

    def _looped(self) -> None:
        """Reductions first, each in loops of its own; then the outputs that lie in the columns, in loops again."""
        for op in self.reductions:
            keep = op.params.get("keep", False) and isinstance(op, DimensionReduction)
            rows = iter(self.domain.row_index)
            shape = tensor_of(op.results[0].type).shape
            dims = op.params["dims"] if keep else ()
            index = [0 if d in dims else next(rows) for d in range(len(shape))]
            self.emit.at(Source(op.results[0], tensor_of(op.results[0].type)), index)
        self._store(only_full=False)
        if any(_is_full(index, self.domain) for index in self.indices):
            with self.emit.columns([]):
                self._store(only_full=True)

    _stream = _looped
    _lanes = _looped
    _taps = _pointwise


@dataclass
class _GroupEmitter(KernelEmitter):
    """The emitter with the group's reductions."""

    schedule: Schedule = field(default_factory=lambda: Schedule("pointwise", "", 1))

    def reduce(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        rule: Any = type(op)
        combiner = COMBINERS[rule.KIND]
        # Every factor of a product adds a rounding: those of f32 are made in f64.
        wide = rule.KIND == "prod" and tensor_of(op.results[0].type).dtype == f32

        def element() -> TileValue:
            value = rule.element(self, index, self.domain.column_index, *operands, **op.params)
            return self._typed(self.cast(value, f64) if wide and value.dtype == f32 else value)

        def done(value: TileValue) -> Value:
            narrowed = self.cast(value, f32) if wide and value.dtype == f64 else value
            return finish(self, op, narrowed, index, operands)

        if self.schedule.mode == "rows":
            value = self._at_every_column(element(), [run.name for run in self.domain.column_runs])
            dtype = combiner.result_dtype(value.dtype)
            for run in reversed(self.domain.column_runs):
                value = self.reduce_axis(value, rule.KIND, self.axes[run.name].position, dtype)
            if not self.domain.column_runs and combiner.indexed:
                value = self._typed(self.constant(0, i64))
            return done(value)
        if not self.domain.column_runs:
            value = self._typed(self.constant(0, i64)) if combiner.indexed else element()
            return done(value)
        if self.schedule.mode == "taps":
            return done(self._taps(op, index, operands))
        probe = AddressRecorder(self.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        probe.dynamic = dict(self.dynamic)
        dtype = rule.element(probe, index, self.domain.column_index, *operands, **op.params).dtype
        dtype = f64 if wide and dtype == f32 else dtype
        initial = self._spread(self.constant(combiner.identity(dtype), dtype))
        if combiner.indexed:
            return done(self._arg_reduce(combiner.function, element, initial))
        carried = [initial]
        if rule.KIND == "sum" and self.schedule.mode == "lanes" and dtype.is_float:
            self._sum_columns(self.domain.column_runs, carried, element)
            return done(replace(carried[0], dtype=dtype))
        with self.columns(carried) as state:
            value = element()
            if self.schedule.mode == "stream":
                value = self._at_every_column(value, [self.schedule.vector])
                value = self.reduce_axis(value, rule.KIND, self.axes[self.schedule.vector].position, value.dtype)
            state[0] = replace(self._typed(self.math(combiner.function, state[0], value)), dtype=dtype)
        return done(carried[0])

    def _taps(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> TileValue:
        """Combine the columns of a window one after the other; those of a large one in loops over its lines."""
        rule: Any = type(op)
        function = COMBINERS[rule.KIND].function

        def line(total: TileValue | None) -> TileValue:
            for place in every(*(range(cast("int", variable.size)) for variable in unrolled)):
                at = {variable.name: position for variable, position in zip(unrolled, place, strict=True)}
                over = [substitute(position, at) for position in self.domain.column_index]
                value = self._typed(rule.element(self, index, over, *operands, **op.params))
                if rule.KIND == "prod" and value.dtype == f32:
                    value = self._typed(self.cast(value, f64))
                total = value if total is None else self._typed(self.math(function, total, value))
            assert total is not None
            return total

        def looped(variables: Sequence[Variable], carried: list[TileValue]) -> None:
            with self.loop(variables[0].name, variables[0].size, 1, carried) as state:
                if variables[1:]:
                    looped(variables[1:], state)
                else:
                    state[0] = line(state[0])

        unrolled = self.domain.columns
        while len(unrolled) > 1 and product(variable.size for variable in unrolled) > _MOST_UNROLLED:  # type: ignore[operator]
            unrolled = unrolled[1:]
        outer = self.domain.columns[: len(self.domain.columns) - len(unrolled)]
        if not outer:
            return line(None)
        probe = AddressRecorder(self.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        dtype = rule.element(probe, index, self.domain.column_index, *operands, **op.params).dtype
        dtype = f64 if rule.KIND == "prod" and dtype == f32 else dtype
        shape = [self.schedule.outer_capacity, self.schedule.capacity][-self.rank :]
        identity = COMBINERS[rule.KIND].identity(dtype)
        type_ = tile.TileType.of(shape, register_dtype(dtype))
        carried = [
            TileValue(self.add(tile.ConstantOp.make(float(identity) if dtype.is_float else identity, type_)), dtype)
        ]
        looped(outer, carried)
        return carried[0]

    def _at_every_column(self, value: TileValue, runs: Sequence[str]) -> TileValue:
        """A tile that has the axes it is reduced along: an expanded tensor is the same at all places of one."""
        shape = list(tile.tile_type(value.ssa).sizes)
        for name in runs:
            shape[self.axes[name].position] = self.axes[name].capacity
        return self.repeated(value, shape)

    def _sum_columns(self, runs: Sequence[Run], carried: list[TileValue], element: Callable[[], TileValue]) -> None:
        """Add up columns one after the other, long runs in blocks of their own: errors grow with the longest sum."""
        if not runs:
            carried[0] = self._typed(self.math("add", carried[0], element()))
            return
        run, rest = runs[0], runs[1:]
        if isinstance(run.size, int) and run.size <= 2 * _SUMMED_IN_TURN:
            with self.loop(run.name, run.size, 1, carried) as state:
                self._sum_columns(rest, state, element)
            return
        block = f"{run.name}_block"
        with self.loop(block, run.size, _SUMMED_IN_TURN, carried) as state:
            partial = [self._spread(self.constant(0, carried[0].dtype))]
            stop = minimum(symbol(block) + _SUMMED_IN_TURN, run.size)
            with self.loop(run.name, stop, 1, partial, lower=symbol(block)) as inner:
                self._sum_columns(rest, inner, element)
            state[0] = self._typed(self.math("add", state[0], partial[0]))

    def _spread(self, value: Value) -> TileValue:
        """A scalar as a tile over the row axis, so that it can be carried through loops."""
        source = self._typed(value)
        constant = source.ssa.owner
        if self.schedule.mode != "lanes" or self.schedule.capacity == 1 or not isinstance(constant, tile.ConstantOp):
            return source
        type_ = tile.TileType.of([self.schedule.capacity], tile.tile_type(source.ssa).dtype)
        wide = tile.ConstantOp.create(attributes={"value": constant.value}, result_types=[type_])
        return TileValue(self.add(wide), source.dtype)

    def _arg_reduce(self, function: str, element: Any, initial: TileValue) -> TileValue:
        """The position of the first extremum, by comparing one column after the other; NaN beats all."""
        compare = "gt" if function == "max" else "lt"
        carried = [initial, self._spread(self.constant(-1, i64))]
        with self.columns(carried) as state:
            value = element()
            sizes = [variable.size for variable in self.domain.columns]
            position: Size = 0
            for variable, size in zip(self.domain.columns, sizes, strict=True):
                position = position * size + variable.expr
            better = self.math(compare, value, state[0])
            first = self.math("lt", state[1], self.constant(0, i64))
            better = self.math("or", better, first)
            if value.dtype.is_float:
                fresh_nan = self.math("and", self.math("isnan", value), self.math("not", self.math("isnan", state[0])))
                better = self.math("or", better, fresh_nan)
            state[0] = self._typed(self.where(better, value, state[0]))
            state[1] = self._typed(self.where(better, self.position(position, i64), state[1]))
        return carried[1]

    def columns(self, carried: list[TileValue]) -> Any:
        """Loops over all columns; in a stream the innermost goes by blocks, which are an axis of the tiles."""
        return _ColumnLoops(self, carried)


class _ColumnLoops:
    """Nested loops over the column runs that carry the same tiles through all levels."""

    def __init__(self, emit: _GroupEmitter, carried: list[TileValue]) -> None:
        self.emit = emit
        self.levels: list[Any] = []
        self.carried = carried
        self.stream = emit.schedule.vector if emit.schedule.mode == "stream" else ""

    def __enter__(self) -> list[TileValue]:
        state = self.carried
        for run in self.emit.domain.column_runs:
            blocked = run.name == self.stream
            capacity = self.emit.schedule.capacity if blocked else 1
            name = f"{run.name}_start" if blocked else run.name
            context = self.emit.loop(name, run.size, capacity, state)
            self.levels.append(context)
            state = context.__enter__()
            if blocked:
                self.emit.tile_axis(run.name, run.size, self.emit.rank - 1, symbol(name), capacity)
        return state

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            return
        self.emit.axes.pop(self.stream, None)
        while self.levels:
            self.levels.pop().__exit__(None, None, None)
