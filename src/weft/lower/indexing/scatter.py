"""Scatters → a copy of the first operand, and a kernel that writes the updates into it.

    %y = graph.index_put %x, %i, %u      tile.kernel @copy  ...                       (x: V × 768, i: N, u: N × 768)
                                         tile.kernel @put grid [8] {
                                    →      tile.for c0 in 0..N {                      one update after the other
                                             tile.scatter add %u[c0, ...], %y at %i[c0]*768 + ... : 768 columns
                                               if %i[c0] is in this program's eighth of V } }

Updates that may meet in one place run in order, in one program. Dimensions of the updates that are dimensions of the
result keep them apart. Where such a dimension is a long row with one index, each program looks at all indices and takes
those of its part of the result, which it first copies by itself; otherwise these dimensions are the grid. Sums and
matmuls of narrow floats are made in f32, in scratch memory, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from xdsl.ir import SSAValue

from weft.ir.expr import Expr, Size, ceildiv, minimum, product, simplify, symbol, symbols_of
from weft.ir.types import DType, Tensor, f32, i64, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.emit.frame import KernelFrame
from weft.lower.emit.kernel import Kernel, group_symbols
from weft.lower.groups.kernels import lower_group, try_lower_group
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address, AddressRecorder, Source
from weft.lower.lowered import Argument, KernelCall, Lowered, anchor_of
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import new_group, regroup
from weft.lower.schedule.gpu_schedule import choose_gpu_schedule
from weft.lower.schedule.schedule import Schedule, contiguous_bytes, lanes_of
from weft.ops.base import Scatter
from weft.ops.body import Value
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.passes.update_in_place import in_place_of

# Rows that are long enough for each program to look at all indices, and take those of its part of the result.
_LEAST_ROW, _MOST_ROW, _PARTS = 128, 4096, 8


@dataclass(frozen=True)
class _Problem:
    """A group with a scatter, the layouts of what it reads, and where it writes."""

    group: GroupOp
    scatter: Scatter
    layouts: dict[SSAValue, StridedLayout]
    output: StridedLayout
    machine: Machine

    @property
    def operands(self) -> list[Source]:
        return [Source(value, tensor_of(value.type)) for value in self.scatter.operands]

    @property
    def space(self) -> tuple[Size, ...]:
        """The shape of the updates."""
        rule: Any = type(self.scatter)
        return rule.updates(*(operand.tensor for operand in self.operands), **self.scatter.params)

    @property
    def kind(self) -> str:
        params = self.scatter.params
        return params["kind"] if "kind" in params else "add" if params.get("accumulate") else "assign"

    def target(self, body: Any, index: Sequence[Size]) -> list[Size]:
        rule: Any = type(self.scatter)
        return rule.target(body, index, *self.operands, **self.scatter.params)

    def update(self, body: Any, index: Sequence[Size]) -> Value:
        rule: Any = type(self.scatter)
        return rule.update(body, index, *self.operands, **self.scatter.params)


def lower_scatter(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group with a scatter, with what is computed from its operands before it."""
    scatter = anchor_of(group)
    assert isinstance(scatter, Scatter)
    if list(group.yielded) != [scatter.results[0]]:
        return Refusal(f"nothing can be computed after {scatter.name} in its kernel")
    (output,) = outputs
    tensor = tensor_of(scatter.results[0].type)
    problem = _Problem(group, scatter, dict(zip(group.block.args, inputs, strict=True)), output, machine)
    reads = tuple(Argument("input", number) for number in range(len(inputs)))
    result, scratch = Argument("output", 0), Argument("scratch", 0)
    if machine.capabilities.unordered_stores and problem.kind == "assign":
        write = KernelCall(_lower_unordered(problem, f"{name}_put"), (*reads, result))
        if in_place_of(group):
            return Lowered((write,))
        copy = try_lower_group(_copy_group(problem, None), f"{name}_copy", inputs, outputs, machine=machine)
        if isinstance(copy, Refusal):
            return copy
        return Lowered((KernelCall(copy, (*reads, result)), write))
    if not (tensor.dtype.is_float and tensor.dtype.bits < 32 and problem.kind in ("add", "mul")):
        walk = _Walk.of(problem)
        copies = not in_place_of(group) and walk.schedule().outer is not None and walk.rows_along is not None
        write = KernelCall(_lower_updates(problem, walk, f"{name}_put", tensor.dtype, copies), (*reads, result))
        if copies or in_place_of(group):
            return Lowered((write,))
        copy = try_lower_group(_copy_group(problem, None), f"{name}_copy", inputs, outputs, machine=machine)
        if isinstance(copy, Refusal):
            return copy
        return Lowered((KernelCall(copy, (*reads, result)), write))
    wide = Tensor(f32, tensor.shape)
    problem = replace(problem, output=contiguous(wide))
    copy = try_lower_group(_copy_group(problem, f32), f"{name}_copy", inputs, [problem.output], machine=machine)
    if isinstance(copy, Refusal):
        return copy
    write = _lower_updates(problem, _Walk.of(problem), f"{name}_put", f32)
    rounding = _cast_group(wide, tensor.dtype)
    narrow = lower_group(rounding, f"{name}_round", [problem.output], outputs, machine=machine)
    calls = (
        KernelCall(copy, (*reads, scratch)),
        KernelCall(write, (*reads, scratch)),
        KernelCall(narrow, (scratch, result)),
    )
    return Lowered(calls, (wide,))


def _copy_group(problem: _Problem, dtype: DType | None) -> GroupOp:
    """A group that gives the scatter's first operand, converted if a type is given."""

    def copied(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        scatter = anchor_of(made)
        assert scatter is not None
        value = scatter.operands[0]
        return [value if dtype is None else b.cast(value, dtype=dtype)]

    return regroup(problem.group, copied)


def _cast_group(source: Tensor, dtype: DType) -> GroupOp:
    def rounded(b: GraphBuilder, value: SSAValue) -> list[SSAValue]:
        return [b.cast(value, dtype=dtype)]

    return new_group([source], rounded)


# -- the updates -----------------------------------------------------------------------------------------------------


@dataclass
class _Walk:
    """The space of the updates: dimensions that keep updates apart are rows, the others columns."""

    problem: _Problem
    apart: frozenset[int]
    domain: Domain
    is_computed: bool
    """Whether places come from data."""
    rows_along: int | None
    """The result's dimension whose places come from data, if updates cover the others whole, in their order."""

    @classmethod
    def of(cls, problem: _Problem, together: bool = False) -> _Walk:
        """The walk over the updates; `together`: as if all of them were kept apart."""
        space = problem.space
        plain = Domain(space, ())
        recorder = AddressRecorder(problem.layouts, space=plain.bounds)
        target = problem.target(recorder, plain.row_index)
        own = [simplify(position, recorder.bounds()) for position in target]
        # Two updates that differ in such a dimension differ in where they go.
        apart = frozenset(d for d in range(len(space)) if symbol(f"r{d}") in own)
        apart = frozenset(range(len(space))) if together else apart
        rows = [size for d, size in enumerate(space) if d in apart]
        columns = [size for d, size in enumerate(space) if d not in apart]
        computed = [d for d, position in enumerate(own) if symbols_of(position) & recorder.dynamic.keys()]
        covered = [symbol(f"r{d}") for d in sorted(apart)] == [own[d] for d in range(len(own)) if d not in computed]
        shape = problem.operands[0].tensor.shape
        covered &= rows == [size for d, size in enumerate(shape) if d not in computed]
        along = computed[0] if covered and len(computed) == 1 else None
        walk = cls(problem, apart, Domain(rows, columns), bool(computed), along)
        addresses = walk.record()
        while walk.domain.split([address.expr for address in addresses]):
            addresses = walk.record()
        walk.domain.fuse([address.expr for address in addresses])
        return walk

    @property
    def index(self) -> list[Size]:
        rows, columns = iter(self.domain.row_index), iter(self.domain.column_index)
        return [next(rows) if d in self.apart else next(columns) for d in range(len(self.problem.space))]

    def record(self) -> list[Address]:
        recorder = AddressRecorder(self.problem.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        index = self.index
        target = self.problem.target(recorder, index)
        self.problem.update(recorder, index)
        dtype = tensor_of(self.problem.scatter.results[0].type).dtype
        address = simplify(self.problem.output.address(target), recorder.bounds())
        return [*recorder.addresses, Address(address, "store", dtype.bytes)]

    def in_runs(self) -> list[Address]:
        return self._by_runs(self.record())

    def _by_runs(self, addresses: Sequence[Address]) -> list[Address]:
        domain = self.domain
        return [
            replace(address, expr=simplify(domain.in_runs(address.expr), domain.run_bounds)) for address in addresses
        ]

    def _moves_whole(self, run: Run) -> bool:
        """Whether data says once for all of a run where its updates go."""
        recorder = AddressRecorder(self.problem.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        self.problem.target(recorder, self.index)
        read = self._by_runs(recorder.addresses)
        return self.is_computed and not any(run.name in symbols_of(address.expr) for address in read)

    def schedule(self) -> Schedule:
        domain, addresses = self.domain, self.in_runs()
        best = max(reversed(domain.row_runs), key=lambda run: contiguous_bytes(run, addresses), default=None)
        if best is None or not contiguous_bytes(best, addresses):
            return Schedule("scatter", "", 1)
        if isinstance(best.size, int) and _LEAST_ROW <= best.size <= _MOST_ROW and self._moves_whole(best):
            return Schedule("scatter", best.name, best.size, "part", _PARTS)
        return Schedule("scatter", best.name, lanes_of(best.size, self.problem.machine))


def _lower_updates(problem: _Problem, walk: _Walk, name: str, dtype: DType, copies: bool = False) -> Kernel:
    """The kernel that writes updates; where it `copies`, each program first fills its part of the result."""
    schedule = walk.schedule()
    arguments = problem.group.block.args
    names = group_symbols(problem.group, [*problem.layouts.values(), problem.output])
    frame = KernelFrame.of(name, [*(tensor_of(value.type).dtype for value in arguments), dtype], names)
    emit = KernelEmitter(problem.layouts, domain=walk.domain, block=frame.block, scalars=frame.scalars)
    pointer = frame.pointers[-1]
    emit.pointers = {**dict(zip(arguments, frame.pointers, strict=False)), pointer: pointer}
    # Where the result has no elements there is nowhere to go: no program runs.
    frame.program(minimum(1, product(tensor_of(problem.scatter.results[0].type).shape)))
    frame.place_rows(emit, schedule.vector, schedule.capacity)
    part: Expr | None = None
    if schedule.outer is not None:
        part = symbol(schedule.outer)
        emit.scalars[schedule.outer] = frame.program(schedule.outer_capacity)
    index = walk.index
    if copies:
        assert part is not None
        _fill_part(walk, emit, pointer, part, schedule.outer_capacity)
    with ExitStack() as loops:
        for run in walk.domain.column_runs:
            loops.enter_context(emit.loop(run.name, run.size, 1, []))
        target = problem.target(emit, index)
        mask: Value | None = None
        for position, size in zip(target, problem.operands[0].tensor.shape, strict=True):
            mask = emit.both(mask, emit.inside(position, size))
            if part is not None and symbols_of(position) & emit.dynamic.keys():
                share = ceildiv(size, schedule.outer_capacity)
                begin, place = part * share, emit.position(position, i64)
                after = emit.math("ge", place, emit.position(begin, i64))
                mask = emit.both(emit.both(mask, after), emit.math("lt", place, emit.position(begin + share, i64)))
                part = None
        value = problem.update(emit, index)
        assert isinstance(value, TileValue)
        offsets = emit.index_tile(emit.resolve(problem.output.address(target)))
        emit.scatter(value, pointer, offsets, mask, problem.kind)
    return frame.finish(schedule)


def _lower_unordered(problem: _Problem, name: str) -> Kernel:
    """The kernel of a GPU that writes updates all at once: which of those for one place stays there is not said."""
    walk = _Walk.of(problem, together=True)
    schedule = replace(choose_gpu_schedule(walk.domain, walk.in_runs(), problem.machine, indexed=False), mode="scatter")
    arguments = problem.group.block.args
    dtype = tensor_of(problem.scatter.results[0].type).dtype
    names = group_symbols(problem.group, [*problem.layouts.values(), problem.output])
    frame = KernelFrame.of(name, [*(tensor_of(value.type).dtype for value in arguments), dtype], names)
    emit = KernelEmitter(problem.layouts, domain=walk.domain, block=frame.block, scalars=frame.scalars)
    emit.rank = 2 if schedule.outer else 1
    pointer = frame.pointers[-1]
    emit.pointers = {**dict(zip(arguments, frame.pointers, strict=False)), pointer: pointer}
    frame.program(minimum(1, product(tensor_of(problem.scatter.results[0].type).shape)))
    frame.place_axes(emit, schedule)
    target = problem.target(emit, walk.index)
    mask: Value | None = None
    for position, size in zip(target, problem.operands[0].tensor.shape, strict=True):
        mask = emit.both(mask, emit.inside(position, size))
    value = problem.update(emit, walk.index)
    assert isinstance(value, TileValue)
    offsets = emit.index_tile(emit.resolve(problem.output.address(target)))
    emit.scatter(value, pointer, offsets, mask, "assign", unordered=True)
    return frame.finish(schedule)


def _fill_part(walk: _Walk, emit: KernelEmitter, pointer: SSAValue, part: Expr, parts: int) -> None:
    """Copy a part of the first operand to the result, row after row."""
    problem, along = walk.problem, walk.rows_along
    assert along is not None
    source = problem.operands[0]
    size = source.tensor.shape[along]
    share = ceildiv(size, parts)
    with emit.loop("place", minimum(part * share + share, size), 1, [], lower=part * share):
        index: list[Size] = [*walk.domain.row_index]
        index.insert(along, symbol("place"))
        emit.store(emit.at(source, index), pointer, problem.output.address(index))
