"""Reductions whose rows are too few to fill a GPU → a kernel of partial results, one that combines them, and the rest.

    %m = graph.max %x dims=[1] keep        @max_parts    m_parts[r, p] = max of part p of row r     (x: 4 × 1000000)
    %e = graph.exp(%x - %m)           →    @max_whole    m[r] = max of m_parts[r]
    %s = graph.sum %e dims=[1]             @..rest       the group that is left, where m is an operand: it has a
                                                         reduction, and is cut like this in turn

What can be written before any reduction is done is written with the first, what needs no columns with the second. What
is left reads a result that was written so, where that is less than what it is computed from: a batch norm's gradient
reads the sum of two gradients, not both of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Size, product, symbol
from weft.ir.types import DType, Tensor, f32, f64, tensor_of, tensor_type
from weft.lower.groups.columns import PART
from weft.lower.groups.kernels import GroupLowering, is_full, lower_group, prepare_group
from weft.lower.groups.online_softmax import stages_of
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import accepted
from weft.lower.regroup import drop_unused, regroup
from weft.ops.base import Reduction
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous

Lower = Callable[[GroupOp, str, Sequence[StridedLayout], Sequence[StridedLayout], Machine], Lowered]


def lower_split(prepared: GroupLowering, inputs: Sequence[StridedLayout], machine: Machine, lower: Lower) -> Lowered:
    """Lower a group whose schedule splits its columns; `lower` takes what is left of it."""
    return _Split(prepared, inputs, machine, lower).run()


@dataclass
class _Split:
    prepared: GroupLowering
    inputs: Sequence[StridedLayout]
    machine: Machine
    lower: Lower
    scratch: list[Tensor] = field(default_factory=list[Tensor])
    calls: list[KernelCall] = field(default_factory=list[KernelCall])

    def run(self) -> Lowered:
        prepared = self.prepared
        group, self.outputs = prepared.group, prepared.outputs
        stages = stages_of(group)
        self.first = [op for op in prepared.reductions if stages[op.results[0]] == 1]
        full = [is_full(index, prepared.domain) for index in prepared.indices]
        stage = [stages[value] for value in group.yielded]
        early = [n for n, whole in enumerate(full) if whole and stage[n] == 0]
        whole = [n for n, wide in enumerate(full) if not wide and stage[n] <= 1]
        late = [n for n in range(len(full)) if n not in early and n not in whole]
        given = [Argument("input", number) for number in range(len(self.inputs))]
        parts = self._make_parts(given, early)
        results = self._combine(given, parts, whole, needed=bool(late))
        if late:
            self._rest(given, results, late, self._read_again(early, late))
        return Lowered(tuple(self.calls), tuple(self.scratch))

    def _new(self, tensor: Tensor) -> Argument:
        self.scratch.append(tensor)
        return Argument("scratch", len(self.scratch) - 1)

    # -- the partial results ---------------------------------------------------------------------------------------

    def _make_parts(self, given: Sequence[Argument], early: Sequence[int]) -> list[Argument]:
        """The kernel that reduces each part, and writes the outputs that wait for nothing."""
        places = [self._place(op) for op in self.first]

        def partial(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            values = list(made.yielded)
            reduced = [_same(op, self.prepared.group, made) for op in self.first]
            totals = [_emit_like(b, op, _widened(b, op.operands[0], op)) for op in reduced]
            return [*totals, *(values[n] for n in early)]

        group = regroup(self.prepared.group, partial)
        rows = [contiguous(tensor_of(value.type)) for value in group.yielded[: len(self.first)]]
        layouts = [*rows, *(self.outputs[n] for n in early)]
        name = f"{self.prepared.name}_parts"
        used = drop_unused(group)
        inputs = [self.inputs[n] for n in used]
        prepared = accepted(prepare_group(group, name, inputs, layouts, machine=self.machine))
        if prepared.schedule.split is None:  # without the rest of the group, its rows are held at once
            prepared = replace(prepared, schedule=replace(prepared.schedule, split=""))
        self.parts = prepared.schedule.parts
        counts = [product(tensor_of(value.type).shape) for value in group.yielded[: len(self.first)]]
        prepared.outputs = [
            *(StridedLayout(row.strides, symbol(PART) * count) for row, count in zip(rows, counts, strict=True)),
            *layouts[len(rows) :],
        ]
        arguments = [self._new(replace(place, shape=(self.parts, *place.shape))) for place in places]
        written = [Argument("output", n) for n in early]
        self.calls.append(KernelCall(prepared.kernel(), (*(given[n] for n in used), *arguments, *written)))
        return arguments

    def _place(self, op: Reduction) -> Tensor:
        """The type of one part's results."""
        return Tensor(_accumulator(op), self.prepared.domain.row_sizes)  # type: ignore[arg-type]

    # -- the whole ones --------------------------------------------------------------------------------------------

    def _combine(
        self, given: Sequence[Argument], parts: Sequence[Argument], whole: Sequence[int], *, needed: bool
    ) -> list[tuple[Argument, StridedLayout]]:
        """The kernel that combines the parts, and writes the outputs that need no columns."""
        shapes = [self._parts_shape(op) for op in self.first]
        yielded = list(self.prepared.group.yielded)

        def combined(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            values = list(made.yielded)
            totals: list[SSAValue] = []
            reduced = [_same(op, self.prepared.group, made) for op in self.first]
            for op, old, shape in zip(self.first, reduced, shapes, strict=True):
                partial = made.block.insert_arg(tensor_type(Tensor(_accumulator(op), shape)), len(made.block.args))
                dtype = tensor_of(old.results[0].type).dtype
                before = GraphBuilder(made.block, before=old)
                total = _emit_like(before, old, partial)
                total = total if before.tensor(total).dtype == dtype else before.cast(total, dtype=dtype)
                old.results[0].replace_all_uses_with(total)
                values = [total if value is old.results[0] else value for value in values]
                totals.append(total)
            extra = [t for t, op in zip(totals, self.first, strict=True) if needed and not self._stored(op, whole)]
            return [*(values[n] for n in whole), *extra]

        group = regroup(self.prepared.group, combined)
        targets = [(Argument("output", n), self.outputs[n]) for n in whole]
        results: list[tuple[Argument, StridedLayout]] = []
        extra: list[tuple[Argument, StridedLayout]] = []
        for op in self.first:
            if self._stored(op, whole):
                place = next(n for n in whole if yielded[n] is op.results[0])
                results.append((Argument("output", place), self.outputs[place]))
            elif needed:
                tensor = tensor_of(op.results[0].type)
                extra.append((self._new(tensor), contiguous(tensor)))
                results.append(extra[-1])
        layouts = [contiguous(Tensor(_accumulator(op), shape)) for op, shape in zip(self.first, shapes, strict=True)]
        # A part's results lie together, in the order of the rows: seen so, the part is where the first column was.
        operands = [*zip(given, self.inputs, strict=True)]
        operands += zip(parts, map(self._parts_layout, self.first, layouts), strict=True)
        read, written = [operands[n] for n in drop_unused(group)], [*targets, *extra]
        kernel = lower_group(
            group,
            f"{self.prepared.name}_whole",
            [layout for _, layout in read],
            [layout for _, layout in written],
            machine=self.machine,
        )
        self.calls.append(KernelCall(kernel, tuple(argument for argument, _ in (*read, *written))))
        return results

    def _stored(self, op: Reduction, whole: Sequence[int]) -> bool:
        return any(self.prepared.group.yielded[n] is op.results[0] for n in whole)

    def _parts_shape(self, op: Reduction) -> tuple[Size, ...]:
        dims: tuple[int, ...] = op.params["dims"]
        shape = tensor_of(op.operands[0].type).shape
        return tuple(self.parts if d == dims[0] else 1 if d in dims else size for d, size in enumerate(shape))

    def _parts_layout(self, op: Reduction, plain: StridedLayout) -> StridedLayout:
        dims: tuple[int, ...] = op.params["dims"]
        shape = tensor_of(op.operands[0].type).shape
        rows = [size for d, size in enumerate(shape) if d not in dims]
        strides = iter(contiguous(Tensor(f32, tuple(rows))).strides)
        each = product(rows)
        return StridedLayout(
            tuple(each if d == dims[0] else 0 if d in dims else next(strides) for d in range(len(shape)))
        )

    # -- what is left ----------------------------------------------------------------------------------------------

    def _read_again(self, early: Sequence[int], late: Sequence[int]) -> list[int]:
        """The results written with the first reductions that are less to read than what they are computed from."""
        group, found = self.prepared.group, list[int]()
        wanted, known = [group.yielded[n] for n in late], {op.results[0] for op in self.first}
        for n in early:
            value = group.yielded[n]
            there = {*known, *(group.yielded[other] for other in found), value}
            saved = self._bytes(_read_for(wanted, there - {value})) - self._bytes(_read_for(wanted, there))
            if saved > 0:
                found.append(n)
        return found

    def _bytes(self, values: Iterable[SSAValue]) -> int:
        """What it takes to read those of some values that have columns, for an element of each."""
        domain = self.prepared.domain
        count = product((*domain.row_sizes, *domain.column_sizes))
        tensors = [tensor_of(value.type) for value in values]
        return sum(tensor.dtype.bytes for tensor in tensors if product(tensor.shape) == count)

    def _rest(
        self,
        given: Sequence[Argument],
        results: Sequence[tuple[Argument, StridedLayout]],
        late: Sequence[int],
        again: Sequence[int],
    ) -> None:
        """The group with the first reductions as operands, and with the results that it reads `again`."""

        def left(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            values = list(made.yielded)
            for op in self.first:
                _be_given(made, _same(op, self.prepared.group, made).results[0])
            for n in again:
                _be_given(made, values[n])
            return [values[n] for n in late]

        group = regroup(self.prepared.group, left)
        operands = [*zip(given, self.inputs, strict=True), *results]
        operands += ((Argument("output", n), self.outputs[n]) for n in again)
        read = [operands[n] for n in drop_unused(group)]
        name, layouts = f"{self.prepared.name}_rest", [layout for _, layout in read]
        lowered = self.lower(group, name, layouts, [self.outputs[n] for n in late], self.machine)
        own = [self._new(tensor) for tensor in lowered.scratch]
        roles = {
            "input": [argument for argument, _ in read],
            "output": [Argument("output", n) for n in late],
            "scratch": own,
        }
        for call in lowered.calls:
            arguments = tuple(roles[argument.role][argument.number] for argument in call.arguments)
            self.calls.append(KernelCall(call.kernel, arguments))


def _read_for(wanted: Iterable[SSAValue], there: Collection[SSAValue]) -> set[SSAValue]:
    """What is read of memory to compute some values: operands of the group, and what is there already."""
    found: set[SSAValue] = set()
    seen: set[SSAValue] = set()
    pending: list[SSAValue] = list(wanted)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in there or not isinstance(value, OpResult):
            found.add(value)
        else:
            pending.extend(value.op.operands)
    return found


def _be_given(group: GroupOp, value: SSAValue) -> None:
    """Let a group take a value as its last operand, which it computed itself."""
    value.replace_all_uses_with(group.block.insert_arg(value.type, len(group.block.args)))


def _same(op: Reduction, group: GroupOp, clone: GroupOp) -> Reduction:
    """The op in a copy of its group."""
    found = list(clone.block.ops)[list(group.block.ops).index(op)]
    assert isinstance(found, Reduction)
    return found


def _emit_like(b: GraphBuilder, op: Reduction, operand: SSAValue) -> SSAValue:
    return b.emit(op.name.removeprefix("graph."), operand, **op.params)


def _accumulator(op: Reduction) -> DType:
    """The type in which partial results are kept: sums and matmuls keep the digits that they are made with."""
    dtype = tensor_of(op.results[0].type).dtype
    if op.KIND not in ("sum", "prod") or not dtype.is_float:
        return dtype
    return f64 if dtype == f64 or (op.KIND == "prod" and dtype == f32) else f32


def _widened(b: GraphBuilder, operand: SSAValue, op: Reduction) -> SSAValue:
    dtype = _accumulator(op)
    return operand if b.tensor(operand).dtype == dtype else b.cast(operand, dtype=dtype)
