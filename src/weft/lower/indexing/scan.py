"""Scans → a tile kernel: a loop along the scanned dimension that carries what the elements so far combine to.

    %y = graph.cumsum %x dim=1          tile.kernel grid [s0, s2/64] {        (x: s0 × s1 × s2)
                                          %y = tile.for c0 in 0..s1 carry %sum = 0 {
                                   →        %sum' = tile.map add(%sum, tile.load %x[...])   : 64 columns at once
                                            tile.store %y[...], %sum' ; tile.yield %sum' } }

Lines that lie side by side in memory are vectors; all other dimensions are the grid. Sums and matmuls of f32 are
carried in f64 and those of narrower floats in f32, so that long scans do not lose digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from weft.ir.expr import Size, simplify
from weft.ir.types import DType, f32, f64, i64, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue, register_dtype
from weft.lower.emit.frame import KernelFrame
from weft.lower.emit.kernel import group_symbols
from weft.lower.index_space.domain import Domain
from weft.lower.index_space.evaluate import Address, AddressRecorder, Dummy, Source
from weft.lower.lowered import Lowered, anchor_of, whole
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.schedule.schedule import Schedule, contiguous_bytes, lanes_of
from weft.ops.base import Scan
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS, greatest, least

_STRIDED_LANES = 16
"""How many lines go side by side where they do not lie so: only functions gain from that, not memory."""


@dataclass(frozen=True)
class _Problem:
    """A group with a scan, and the layouts of what it reads and writes."""

    group: GroupOp
    scan: Scan
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]

    @property
    def shape(self) -> tuple[Size, ...]:
        return tensor_of(self.scan.operands[0].type).shape

    def index(self, domain: Domain) -> list[Size]:
        rows = iter(domain.row_index)
        (column,) = domain.column_index
        return [column if d == self.scan.params["dim"] else next(rows) for d in range(len(self.shape))]


def lower_scan(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group with a scan, with what is computed from its operand before and from its results after it."""
    scan = anchor_of(group)
    assert isinstance(scan, Scan)
    problem = _Problem(group, scan, dict(zip(group.block.args, inputs, strict=True)), outputs)
    for value in group.yielded:
        if tensor_of(value.type).shape != problem.shape:
            return Refusal(f"{tensor_of(value.type)} does not have the elements that {scan.name} walks")
    dim: int = scan.params["dim"]
    domain = Domain([size for d, size in enumerate(problem.shape) if d != dim], [problem.shape[dim]])
    while True:
        recorder = _record(problem, domain)
        if recorder.refusals:
            return Refusal(recorder.refusals[0])
        addresses = recorder.addresses
        if not domain.split([address.expr for address in addresses]):
            break
    domain.fuse([address.expr for address in addresses])
    in_runs = [replace(a, expr=simplify(domain.in_runs(a.expr), domain.run_bounds)) for a in addresses]
    schedule = _schedule(domain, in_runs, machine, heavy=scan.KIND == "logaddexp")

    names = group_symbols(group, [*inputs, *outputs])
    values = [*group.block.args, *group.yielded]
    frame = KernelFrame.of(name, [tensor_of(value.type).dtype for value in values], names)
    emit = KernelEmitter(problem.layouts, domain=domain, block=frame.block, scalars=frame.scalars)
    emit.pointers = dict(zip(group.block.args, frame.pointers, strict=False))
    emit.pointers |= {pointer: pointer for pointer in frame.pointers}
    frame.place_rows(emit, schedule.vector, schedule.capacity)
    _emit(problem, emit, frame.pointers[len(inputs) :], schedule.capacity)
    return whole(frame.finish(schedule), len(inputs), len(outputs))


def _record(problem: _Problem, domain: Domain) -> AddressRecorder:
    recorder = AddressRecorder(problem.layouts, space=domain.bounds, columns=domain.column_index)
    index = problem.index(domain)
    operand = problem.scan.operands[0]
    recorder.at(Source(operand, tensor_of(operand.type)), index)
    for result in problem.scan.results:
        recorder.given[result] = (tuple(index), Dummy(tensor_of(result.type).dtype))
    for value, layout in zip(problem.group.yielded, problem.outputs, strict=True):
        tensor = tensor_of(value.type)
        recorder.at(Source(value, tensor), index)
        address = simplify(layout.address(index), domain.bounds)
        recorder.addresses.append(Address(address, "store", tensor.dtype.bytes))
    return recorder


def _schedule(domain: Domain, addresses: Sequence[Address], machine: Machine, *, heavy: bool) -> Schedule:
    if not domain.row_runs:
        return Schedule("scan", "", 1)
    best = max(reversed(domain.row_runs), key=lambda run: contiguous_bytes(run, addresses))
    if contiguous_bytes(best, addresses):
        return Schedule("scan", best.name, lanes_of(best.size, machine))
    if not heavy:
        return Schedule("scan", "", 1)
    return Schedule("scan", best.name, min(_STRIDED_LANES, lanes_of(best.size, machine)))


def _emit(problem: _Problem, emit: KernelEmitter, targets: Sequence[SSAValue], capacity: int) -> None:
    operand = problem.scan.operands[0]
    dtype = tensor_of(operand.type).dtype
    start, step = _STEPS[problem.scan.KIND]
    carried = [_wide(emit, value, capacity) for value in start(dtype)]
    index = problem.index(emit.domain)
    with ExitStack() as loops:
        state = carried
        for run in emit.domain.column_runs:
            state = loops.enter_context(emit.loop(run.name, run.size, 1, state))
        element = emit.at(Source(operand, tensor_of(operand.type)), index)
        position = emit.domain.column_index[0]
        for result, value in zip(problem.scan.results, step(emit, state, element, position), strict=True):
            emit.given[result] = (tuple(index), value)
        for value, layout, target in zip(problem.group.yielded, problem.outputs, targets, strict=True):
            emit.store(emit.at(Source(value, tensor_of(value.type)), index), target, layout.address(index))


def _wide(emit: KernelEmitter, value: tuple[float | int | bool, DType], capacity: int) -> TileValue:
    """A number as a tile over all lines of a program."""
    number, dtype = value
    type_ = tile.TileType.of([capacity], dtype)
    return TileValue(emit.add(tile.ConstantOp.make(float(number) if dtype.is_float else number, type_)), dtype)


# -- what is carried, and what an element does to it -----------------------------------------------------------------

_Start = Callable[[DType], list[tuple[float | int | bool, DType]]]
_Step = Callable[[KernelEmitter, list[TileValue], Value, Size], list[Value]]


def _accumulator(dtype: DType) -> DType:
    return f64 if dtype == f32 else register_dtype(dtype)


def _set(emit: KernelEmitter, state: list[TileValue], *values: Value) -> None:
    for position, value in enumerate(values):
        assert isinstance(value, TileValue)
        state[position] = replace(value, dtype=state[position].dtype)


def _combining(kind: str) -> tuple[_Start, _Step]:
    combiner = COMBINERS[kind]

    def start(dtype: DType) -> list[tuple[float | int | bool, DType]]:
        return [(combiner.identity(dtype), _accumulator(dtype))]

    def step(emit: KernelEmitter, state: list[TileValue], element: Value, position: Size) -> list[Value]:
        wide = emit.cast(element, _accumulator(element.dtype))
        _set(emit, state, emit.math(combiner.function, state[0], wide))
        return [emit.cast(state[0], element.dtype)]

    return start, step


def _extremum(kind: str) -> tuple[_Start, _Step]:
    """The best element so far and its position: of equals the last; a NaN stays until the next one."""
    worst = least if kind == "max" else greatest

    def start(dtype: DType) -> list[tuple[float | int | bool, DType]]:
        return [(worst(dtype), register_dtype(dtype)), (0, i64)]

    def step(emit: KernelEmitter, state: list[TileValue], element: Value, position: Size) -> list[Value]:
        # What each element waits for is one maximum and one selection; the comparison stands beside that chain.
        best = emit.math(kind, element, state[0])
        better = emit.math("eq", element, best)
        if element.dtype.is_float:
            better = emit.math("or", better, emit.math("isnan", element))
        _set(emit, state, best, emit.where(better, emit.position(position, i64), state[1]))
        return [emit.cast(state[0], element.dtype), state[1]]

    return start, step


def _log_sum(emit: KernelEmitter, state: list[TileValue], element: Value, position: Size) -> list[Value]:
    """log Σ exp(x) as m + log(Σ exp(x - m)) with the greatest x as m: only sums are carried, no logarithms."""
    greatest_so_far, total = state
    dtype = greatest_so_far.dtype
    x = emit.cast(element, dtype)
    peak = emit.math("max", greatest_so_far, x)
    # An infinite peak would give inf - inf; without a shift, exp says the right thing by itself.
    infinite = emit.math("or", emit.math("isinf", peak), emit.math("isnan", peak))
    shift = emit.where(infinite, emit.constant(0, dtype), peak)
    kept, added = (emit.cast(emit.math("exp", emit.math("sub", value, shift)), f64) for value in (greatest_so_far, x))
    # 0 * inf: nothing is kept where there is nothing yet.
    kept = emit.where(emit.math("eq", total, emit.constant(0, f64)), total, emit.math("mul", total, kept))
    _set(emit, state, peak, emit.math("add", kept, added))
    logarithm = emit.math("log", emit.cast(state[1], dtype))
    return [emit.cast(emit.math("add", shift, logarithm), element.dtype)]


_STEPS: dict[str, tuple[_Start, _Step]] = {
    "sum": _combining("sum"),
    "prod": _combining("prod"),
    "max": _extremum("max"),
    "min": _extremum("min"),
    "logaddexp": (lambda dtype: [(float("-inf"), register_dtype(dtype)), (0.0, f64)], _log_sum),
}
