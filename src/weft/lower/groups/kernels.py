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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, product, simplify, symbol, symbols_of
from weft.ir.types import tensor_of
from weft.lower.emit.kernel import Kernel
from weft.lower.groups.columns import PART
from weft.lower.groups.kernel_frame import KernelFrame
from weft.lower.groups.online_softmax import OnlinePair, may_run, online_pairs, stages_of
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address, AddressRecorder, Source, StridedLayout
from weft.lower.machine import CPU, Machine
from weft.lower.refusal import Refusal, accepted
from weft.lower.schedule.gpu_schedule import choose_gpu_schedule
from weft.lower.schedule.schedule import Schedule, choose_schedule, contiguous_bytes
from weft.ops.base import Reduction
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.reduce import DimensionReduction
from weft.tile.functions import COMBINERS


def lower_group(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    in_place: Mapping[int, int] = MappingProxyType({}),
    machine: Machine = CPU,
) -> Kernel:
    """Lower a group whose operands and results have the given layouts, to one kernel.

    `in_place` results are written over operands.
    """
    return accepted(try_lower_group(group, name, inputs, outputs, in_place, machine))


def try_lower_group(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    in_place: Mapping[int, int] = MappingProxyType({}),
    machine: Machine = CPU,
) -> Kernel | Refusal:
    """As `lower_group`, or why there is no such kernel."""
    prepared = prepare_group(group, name, inputs, outputs, in_place, machine)
    if isinstance(prepared, Refusal):
        return prepared
    return replace(prepared, schedule=replace(prepared.schedule, split=None, parts=1)).kernel()


def prepare_group(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    in_place: Mapping[int, int] = MappingProxyType({}),
    machine: Machine = CPU,
) -> GroupLowering | Refusal:
    """The domain of a group's kernel and its schedule: all but the code; or why it is none."""
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    reductions = [op for op in group.block.ops if isinstance(op, Reduction)]
    domain = _domain(group, reductions)
    while True:
        indices: list[list[Size]] = []
        for value in group.yielded:
            index = _output_index(value, domain, reductions)
            if isinstance(index, Refusal):
                return index
            indices.append(index)
        recorder = _record(group, layouts, outputs, domain, indices)
        if recorder.refusals:
            return Refusal(recorder.refusals[0])
        recorded = recorder.addresses
        if not domain.split([address.expr for address in recorded]):
            break
    domain.fuse([address.expr for address in recorded])
    addresses = [
        replace(address, expr=simplify(domain.in_runs(address.expr), domain.run_bounds)) for address in recorded
    ]
    indexed = any(COMBINERS[op.KIND].indexed for op in reductions)
    if not indexed:  # columns may be combined in any order: those that lie one after the other come last
        domain.column_runs.sort(key=lambda run: contiguous_bytes(run, addresses))
    window = len(reductions) == 1 and not isinstance(reductions[0], DimensionReduction)
    pairs = online_pairs(group) if machine.capabilities.thread_blocks else []
    if machine.capabilities.thread_blocks:
        once, again = _reads_once(group, pairs, domain, indices), _reads_one(group, domain, indices)
        schedule = choose_gpu_schedule(
            domain, addresses, machine, indexed=indexed, window=window, once=once, again=again
        )
    else:
        schedule = choose_schedule(domain, addresses, machine, indexed=indexed, window=window)
    if schedule.mode == "taps":
        domain.column_runs = [Run((variable,)) for variable in domain.columns]
    pairs = pairs if may_run(schedule) else []
    return GroupLowering(group, name, layouts, outputs, in_place, domain, indices, reductions, schedule, pairs)


def _reads_once(group: GroupOp, pairs: Sequence[OnlinePair], domain: Domain, indices: Sequence[Sequence[Size]]) -> bool:
    """Whether nothing needs the columns again behind the first pass over them."""
    stages = stages_of(group, pairs)
    full = [stages[value] for value, index in zip(group.yielded, indices, strict=True) if is_full(index, domain)]
    reduced = [stages[op.results[0]] for op in group.block.ops if isinstance(op, Reduction)]
    return max(full, default=0) == 0 and max(reduced, default=0) == 1


def _reads_one(group: GroupOp, domain: Domain, indices: Sequence[Sequence[Size]]) -> bool:
    """Whether every pass over the columns, for a reduction or for what is written, reads one and the same operand."""
    read: dict[SSAValue, frozenset[SSAValue]] = {
        argument: frozenset((argument,) if _may_have_columns(argument, domain) else ()) for argument in group.block.args
    }
    passes: set[frozenset[SSAValue]] = set()
    for op in group.block.ops:
        found = frozenset[SSAValue]().union(*(read.get(operand, frozenset()) for operand in op.operands))
        if isinstance(op, Reduction):
            passes.add(found)
        read.update({result: frozenset() if isinstance(op, Reduction) else found for result in op.results})
    passes |= {read[value] for value, index in zip(group.yielded, indices, strict=True) if is_full(index, domain)}
    return len(passes) == 1 and len(passes.pop()) == 1


def _may_have_columns(value: SSAValue, domain: Domain) -> bool:
    """Whether an operand has elements enough for a row."""
    size, columns = product(tensor_of(value.type).shape), product(run.size for run in domain.column_runs)
    return not isinstance(size, int) or not isinstance(columns, int) or size >= columns


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


def _output_index(value: SSAValue, domain: Domain, reductions: Sequence[Reduction]) -> list[Size] | Refusal:
    """Where an output's element lies, in terms of the domain: all of it, or the rows alone."""
    shape = tensor_of(value.type).shape
    rows = domain.row_index
    if not reductions or not isinstance(reductions[0], DimensionReduction):
        if shape != tuple(domain.row_sizes):
            return Refusal(f"a group's outputs have one shape, got {shape} beside {tuple(domain.row_sizes)}")
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
    return Refusal(f"an output of shape {shape} does not lie in the group's rows or columns")


def is_full(index: Sequence[Size], domain: Domain) -> bool:
    """Whether an index moves along the columns."""
    columns = {variable.name for variable in domain.columns}
    return any(symbols_of(position) & columns for position in index)


def _record(
    group: GroupOp,
    layouts: dict[SSAValue, StridedLayout],
    outputs: Sequence[StridedLayout],
    domain: Domain,
    indices: Sequence[Sequence[Size]],
) -> AddressRecorder:
    recorder = AddressRecorder(layouts, space=domain.bounds, columns=domain.column_index)
    for value, layout, index in zip(group.yielded, outputs, indices, strict=True):
        tensor = tensor_of(value.type)
        recorder.at(Source(value, tensor), index)
        address = simplify(layout.address(index), domain.bounds)
        recorder.addresses.append(Address(address, "store", tensor.dtype.bytes))
    return recorder


@dataclass
class GroupLowering:
    """The construction of one kernel."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    in_place: Mapping[int, int]
    domain: Domain
    indices: Sequence[Sequence[Size]]
    reductions: Sequence[Reduction]
    schedule: Schedule
    pairs: Sequence[OnlinePair] = ()

    def kernel(self) -> Kernel:
        frame = KernelFrame.open(self.group, self.layouts, self.outputs, self.in_place, self.domain, self.schedule)
        self.emit, self.targets = frame.emit, frame.targets
        grid = self._place_rows()
        getattr(self, f"_{self.schedule.mode}")()
        return frame.close(self.name, grid)

    def _place_rows(self) -> list[Size]:
        """Give every row run a program number or an axis; returns the grid."""
        emit, schedule = self.emit, self.schedule
        columns = len(self.domain.column_runs) if schedule.mode == "rows" else 1
        emit.rank = max(columns, 1) + (1 if schedule.outer else 0)
        grid: list[Size] = []
        for run in self.domain.row_runs:
            capacity = schedule.capacity_of(run)
            if capacity is not None and run.size == capacity:
                base: Size = 0
            else:
                scalar = run.name if capacity is None else f"p{len(grid)}"
                emit.scalars[scalar] = emit.program(len(grid))
                grid.append(run.size if capacity is None else ceildiv(run.size, capacity))
                base = symbol(scalar) * (capacity or 1)
            if capacity is not None:
                position = emit.rank - 1 if run.name == schedule.vector else 0
                emit.tile_axis(run.name, run.size, position, base, capacity)
        if schedule.split is not None:
            emit.scalars[PART] = emit.program(len(grid))
            grid.append(schedule.parts)
        return grid

    def _store(self, results: Sequence[int] | None = None) -> None:
        outputs: list[tuple[Value, SSAValue, Size]] = []
        for result in range(len(self.group.yielded)) if results is None else results:
            value, index = self.group.yielded[result], self.indices[result]
            element = self.emit.at(Source(value, tensor_of(value.type)), index)
            outputs.append((element, self.targets[result], self.outputs[result].address(index)))
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
        """Reductions by stages: those that need no other's result together, in the same loops, then those that do.

        An output that lies in the columns is written in the loops of the stage for which all that it needs is there,
        or at the end, in loops of its own.
        """
        stages = stages_of(self.group, self.pairs)
        last = max((stages[op.results[0]] for op in self.reductions), default=0)
        full = [r for r, index in enumerate(self.indices) if is_full(index, self.domain)]
        stage = {r: stages[self.group.yielded[r]] for r in full}
        # What is written over an operand waits until nobody reads that any more.
        latest = max([last - 1, *stage.values()])
        stage |= {r: latest for r in full if r in self.in_place}
        for number in range(last):
            together = [op for op in self.reductions if stages[op.results[0]] == number + 1]
            pairs = [pair for pair in self.pairs if pair.largest in together]
            stored = [r for r in full if stage[r] == number]
            also = partial(self._store, stored) if stored else None
            self.emit.reduce_together({op: self._row_index_of(op) for op in together}, also, pairs)
        self._store([r for r in range(len(self.indices)) if r not in full])
        late = [r for r in full if stage[r] >= last]
        if late:
            with self.emit.columns([]):
                self._store(late)

    def _row_index_of(self, op: Reduction) -> list[Size]:
        """Where a reduction's result for a row lies."""
        keep = op.params.get("keep", False) and isinstance(op, DimensionReduction)
        rows = iter(self.domain.row_index)
        dims = op.params["dims"] if keep else ()
        return [0 if d in dims else next(rows) for d in range(len(tensor_of(op.results[0].type).shape))]

    _stream = _looped
    _lanes = _looped
    _taps = _pointwise
