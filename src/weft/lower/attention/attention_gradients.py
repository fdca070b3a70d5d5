"""The gradients of attention → a kernel for keys and values, and one for queries. None of them holds all weights.

    tile.kernel grid [blocks of keys] {                 tile.kernel grid [blocks of queries] {
      %k, %v = tile.load ..                               %q, %g = tile.load ..
      tile.for blocks of queries {                        tile.for blocks of keys {
        %s = tile.dot %k, transposed queries                %s = tile.dot %q, transposed keys
        %d = tile.dot %v, transposed gradients              %d = tile.dot %g, transposed values
        %p = 2^%s                                           %p = 2^%s
        %dv += tile.dot %p, gradients                       %ds = %p * %d
        %dk += tile.dot (%p * %d), queries }                %dq += tile.dot %ds, keys }
      tile.store %dk, %dv }                               tile.store %dq }

Both make the weights again, from the scores and what the forward pass has kept of each row. Scores are laid down so
that the weights come out of one matmul just as the next one takes them. Each sum has one program, and one order:
results are the same in every run. For keys, slopes begin with what is subtracted from them. What is subtracted, an
iteration reads for the next one while its own matmuls run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, mod, product, simplify, symbol
from weft.ir.types import Tensor, i32, tensor_of
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.emit.blocked import BlockedKernel
from weft.lower.emit.body import Axis, TileValue, register_dtype
from weft.lower.emit.kernel import Kernel
from weft.lower.groups.kernels import lower_group
from weft.lower.index_space.domain import Domain, Run, Variable, fused
from weft.lower.index_space.evaluate import AddressRecorder, Source
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import regroup
from weft.lower.schedule.schedule import Blocks, choose_gradient_blocks, given_blocks
from weft.ops.body import Value
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention_gradients import AttentionGradients
from weft.tile import dialect as tile

_LONGEST, _UNIT = 192, 64
"""The longest block of queries, and what rows of numbers in memory are aligned to."""
_MANY = 16
"""Programs of each multiprocessor."""
_LETTERS = "ijen"
"""Queries, keys, their width and that of the values: the columns of the domain, in this order."""


def lower_attention_gradients(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that holds nothing but views and the gradients of one attention."""
    op = next(op for op in group.block.ops if isinstance(op, AttentionGradients))
    if any(value not in op.results for value in group.yielded):
        return Refusal("nothing can be computed after attention_gradients in its kernels")
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    rows = [_padded(tensor_of(value.type)) for value in op.operands[4:]]
    read = [Argument("input", number) for number in range(len(inputs))]
    beside = [Argument("scratch", number) for number in range(len(rows))]
    written = [Argument("output", number) for number in range(len(outputs))]
    made = lower_group(_subtracted(group), f"{name}_rows", inputs, [*map(contiguous, rows)], machine=machine)
    calls = [KernelCall(made, (*read, *beside))]
    for construction, results in ((_OfKeys, op.results[1:]), (_OfQueries, op.results[:1])):
        if any(result in group.yielded for result in results):
            kernel = construction(group, f"{name}_{construction.OF}", layouts, outputs, op, machine, rows).kernel()
            calls.append(KernelCall(kernel, (*read, *written, *beside)))
    return Lowered(tuple(calls), tuple(rows))


def _padded(rows: Tensor) -> Tensor:
    """Numbers of rows in memory of their own, where all blocks of them are whole."""
    *lead, length = rows.shape
    return Tensor(rows.dtype, (*lead, ceildiv(length, _UNIT) * _UNIT + _LONGEST))


def _subtracted(group: GroupOp) -> GroupOp:
    """A group that gives what is added to matmuls: less the logarithms of sums, in powers of two, and less the means.

    Of rows that do not exist it is zero: their weights are ones, and what they weigh is nothing.
    """

    def rows(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        op = next(op for op in made.block.ops if isinstance(op, AttentionGradients))
        found: list[SSAValue] = []
        for value, factor in zip(op.operands[4:], (-LOG2_E, -1.0), strict=True):
            *lead, length = b.tensor(value).shape
            high = (*(0 for _ in lead), _padded(b.tensor(value)).shape[-1] - length)
            scaled = b.mul(value, b.full_like(value, factor))
            found.append(b.pad(scaled, low=(0,) * len(high), high=high, value=0.0))
        return found

    return regroup(group, rows)


@dataclass
class _Construction:
    """One kernel of two. The rows of its domain are the leading dimensions and the members of a group."""

    OF = ""
    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    op: AttentionGradients
    machine: Machine
    rows: Sequence[Tensor]
    bases: dict[str, Size] = field(default_factory=dict[str, Size])

    def kernel(self) -> Kernel:
        q, k, v = (tensor_of(value.type) for value in self.op.operands[1:4])
        self.dtype = register_dtype(q.dtype)
        self.narrow = q.dtype
        self.causal: bool = self.op.params["causal"]
        self.unit: float = self.op.params["scale"] * LOG2_E
        self.queries, self.keys, self.members = q.shape[-2], k.shape[-2], q.shape[-3]
        self.domain = domain = Domain(q.shape[:-2], (self.queries, self.keys, q.shape[-1], v.shape[-1]))
        self.member: Size = domain.row_index[-1]
        while domain.split(addresses := self._addresses()):
            self.member = domain.row_index[-1]
        parts: dict[str, list[Variable]] = {}
        for variable in domain.columns:
            parts.setdefault(_LETTERS[int(variable.name.strip("chl"))], []).append(variable)
        self.runs = {letter: Run(tuple(variables)) for letter, variables in parts.items()}
        last = f"r{q.rank - 3}"
        self.lead = fused([variable for variable in domain.rows if variable.name.rstrip("hl") != last], addresses)
        self.within = [Run((variable,)) for variable in domain.rows if variable.name.rstrip("hl") == last]
        domain.row_runs, domain.column_runs = [*self.lead, *self.within], [*self.runs.values()]
        chosen = choose_gradient_blocks(self.OF, (self.queries, self.keys, q.shape[-1], v.shape[-1]), self.machine)
        self.blocks: Blocks = given_blocks(self.group, "attention_gradients") or chosen
        self.sides = dict(zip(_LETTERS, self.blocks.sides, strict=True))
        self.bases = {"e": 0, "n": 0}
        self.frame = BlockedKernel(
            self.group,
            self.name,
            self.layouts,
            self.outputs,
            domain,
            parts=self.machine.capabilities.async_copies,
            scratch=self.rows,
        )
        self.emit = self.frame.emit
        self.fill()
        return self.frame.frame.finish(self.blocks, paired=self._is_paired)

    @property
    def _is_paired(self) -> bool:
        """Whether a block has programs from both ends in turn, which are of one length together: few go one by one."""
        programs = product(self.frame.frame.grid)
        many = isinstance(programs, int) and programs >= _MANY * self.machine.multiprocessors
        apart = not {"i_block", "j_block"}.isdisjoint(self.emit.scalars)
        return self.machine.capabilities.thread_blocks and self.causal and many and apart

    def fill(self) -> None:
        """Make the ops of the kernel."""
        raise NotImplementedError

    # -- addresses -------------------------------------------------------------------------------------------------

    def _index(self, operand: int) -> list[Size]:
        """Where the element of an operand lies: of the gradient, the queries, the keys or the values."""
        lead, (i, j, e, n) = self.domain.row_index[:-1], self.domain.column_index
        rows = [*lead, self.member, i]
        return [[*rows, n], [*rows, e], [*lead, j, e], [*lead, j, n]][operand]

    def _addresses(self) -> list[Size]:
        recorder = AddressRecorder(self.layouts, space=self.domain.bounds)
        for number, value in enumerate(self.op.operands[:4]):
            recorder.at(Source(value, tensor_of(value.type)), self._index(number))
        stores = [
            simplify(layout.address(self._index(1 + self.op.results.index(value))), self.domain.bounds)
            for value, layout in zip(self.group.yielded, self.outputs, strict=True)
        ]
        rows = [contiguous(tensor).address([*self.domain.row_index, 0]) for tensor in self.rows]
        return [*(address.expr for address in recorder.addresses), *stores, *rows]

    # -- tiles -----------------------------------------------------------------------------------------------------

    def _start(self, letter: str, *, backwards: bool = False) -> None:
        """Let each program have a block of rows or keys."""
        if letter not in self.runs or self.runs[letter].size == self.sides[letter]:
            self.bases[letter] = 0
            return
        name, side = f"{letter}_block", self.sides[letter]
        count = ceildiv(self.runs[letter].size, side)
        self.emit.scalars[name] = self.frame.frame.program(count)
        self.bases[letter] = (count - 1 - symbol(name) if backwards else symbol(name)) * side

    def _operand(self, number: int, letters: str) -> SSAValue:
        """A tile of an operand as it lies in memory."""
        return self.emit.repeated(self._at(number, letters), [self.sides[letter] for letter in letters]).ssa

    def _at(self, number: int, letters: str) -> Value:
        self._axes(letters)
        value = self.op.operands[number]
        return self.emit.at(Source(value, tensor_of(value.type)), self._index(number))

    def _of_rows(self, number: int, axis: int) -> TileValue:
        """What is subtracted from the matmuls of a block of rows, along an axis: whole, as memory holds it."""
        tensor, side, strides, shape = self.rows[number], self.sides["i"], [0, 0], [1, 1]
        strides[axis], shape[axis] = 1, side
        self._axes("")
        address = self.emit.resolve(contiguous(tensor).address([*self.domain.row_index[:-1], self.member, 0]))
        attributes, operands = self.emit.sizes((address + self.bases["i"],), strides, shape)
        load = tile.LoadOp.create(
            operands=[self.frame.beside[number], *operands],
            attributes=dict(zip(("offset", "strides", "extents"), attributes, strict=True)),
            result_types=[tile.TileType.of(shape, tensor.dtype)],
        )
        loaded = TileValue(self.emit.add(load), tensor.dtype)
        return TileValue(self._tile_of(self.emit.cast(loaded, self.dtype)), self.dtype)

    def _axes(self, letters: str) -> None:
        self.emit.axes.clear()
        for scope in self.emit.scopes:  # what was read of another block is none of this one
            scope.clear()
        for position, letter in enumerate(letters):
            if letter in self.runs:
                run, base, side = self.runs[letter], self.bases[letter], self.sides[letter]
                whole = isinstance(run.size, int) and run.size % side == 0
                extent = side if whole else minimum(side, run.size - base)
                self.emit.axes[run.name] = Axis(run.name, position, base, side, extent, run.size)

    def _dot(self, a: SSAValue, b: SSAValue, letters: str, total: SSAValue | None = None) -> TileValue:
        type_ = tile.TileType.of([self.sides[letter] for letter in letters], self.dtype)
        operands = [a, b] if total is None else [a, b, total]
        return TileValue(self.emit.add(tile.DotOp.create(operands=operands, result_types=[type_])), self.dtype)

    def _zeros(self, letters: str) -> TileValue:
        type_ = tile.TileType.of([self.sides[letter] for letter in letters], self.dtype)
        return TileValue(self.emit.add(tile.ConstantOp.make(0.0, type_)), self.dtype)

    def _power(self, value: Value) -> TileValue:
        return self.emit.map("exp2", [value], self.dtype, **{tile.FLUSHES: UnitAttr()})

    def _rounded(self, value: Value) -> SSAValue:
        """A factor of a matmul, in the type of the other one."""
        return self._tile_of(self.emit.rounded(value, self.narrow))

    def _tile_of(self, value: Value) -> SSAValue:
        assert isinstance(value, TileValue)
        return value.ssa

    def _place(self, letter: str, axis: int) -> TileValue:
        """Queries or keys by number."""
        strides, shape = [0, 0], [1, 1]
        strides[axis], shape[axis] = 1, self.sides[letter]
        return self.emit.place_tile(self.bases[letter], strides, shape, i32)

    def _store(self, result: int, value: Value, letters: str) -> None:
        for output, layout, target in zip(self.group.yielded, self.outputs, self.frame.targets, strict=True):
            if output is self.op.results[result]:
                self._axes(letters)
                typed = self.emit.cast(value, self.narrow)
                self.emit.store(typed, target, layout.address(self._index(1 + result)))


class _OfKeys(_Construction):
    """A program has a block of keys and values, and walks the queries that attend to them, member after member."""

    OF = "keys"

    def fill(self) -> None:
        for run in self.lead[:-1]:
            self.frame.program(run)
        self._start("j")
        for run in self.lead[-1:]:  # the innermost: programs of a few heads and neighbouring keys run at the same time
            self.frame.program(run)
        self.member = 0
        keys, values = self._operand(2, "je"), self._operand(3, "jn")
        first, side = self.bases["j"], self.sides["i"]
        self.count = ceildiv(self.queries, side)
        lower = minimum(self.count, floordiv(first, side)) if self.causal else 0
        upper = maximum(lower, minimum(self.count, ceildiv(first + self.sides["j"] - 1, side))) if self.causal else 0
        state = [self._zeros("je"), self._zeros("jn"), *self._rows_of(lower, 0)]
        if self.causal:
            self._walk("masked", lower, upper, state, keys, values, masked=True)
        self._walk("whole", upper, self.count, state, keys, values, masked=False)
        factor = self.emit.constant(self.op.params["scale"], self.dtype)
        self._store(1, self.emit.math("mul", state[0], factor), "je")
        self._store(2, state[1], "jn")

    def _rows_of(self, block: Size, member: Size) -> list[TileValue]:
        """What is subtracted from the matmuls of a block of queries; of the last one where there are no more."""
        self.bases["i"], self.member = minimum(block, self.count - 1) * self.sides["i"], member
        return [self._of_rows(number, 1) for number in range(2)]

    def _walk(
        self,
        name: str,
        lower: Size,
        upper: Size,
        state: list[TileValue],
        keys: SSAValue,
        values: SSAValue,
        *,
        masked: bool,
    ) -> None:
        emit, turn, members = self.emit, symbol(f"{name}_turn"), self.members
        with emit.loop(f"{name}_turn", (upper - lower) * members, 1, state) as carried:
            self.bases["i"] = (lower + floordiv(turn, members)) * self.sides["i"]
            self.member = mod(turn, members)
            on_keys, on_values, least, means = carried
            begun = self._tile_of(emit.math("add", self._zeros("ji"), means))
            scores = self._dot(keys, self._operand(1, "ei"), "ji")
            slopes = self._dot(values, self._operand(0, "ni"), "ji", begun)
            weights: Value = self._power(emit.fused(scores, emit.constant(self.unit, self.dtype), least))
            if masked:
                seen = emit.math("le", self._place("j", 0), self._place("i", 1))
                weights = emit.where(seen, weights, emit.constant(0.0, self.dtype))
            on_values = self._dot(self._rounded(weights), self._operand(0, "in"), "jn", on_values.ssa)
            on_scores = emit.math("mul", weights, slopes)
            on_keys = self._dot(self._rounded(on_scores), self._operand(1, "ie"), "je", on_keys.ssa)
            rows = self._rows_of(lower + floordiv(turn + 1, members), mod(turn + 1, members))
            carried[:] = [on_keys, on_values, *rows]


class _OfQueries(_Construction):
    """A program has a block of queries, and walks the keys that they attend to."""

    OF = "queries"

    def fill(self) -> None:
        rest = [*self.lead, *self.within]
        for run in rest[:-1]:
            self.frame.program(run)
        self._start("i", backwards=self.causal)  # the longest programs come first
        for run in rest[-1:]:
            self.frame.program(run)
        self.query, self.grad = self._operand(1, "ie"), self._operand(0, "in")
        self.least, self.means = self._of_rows(0, 0), self._of_rows(1, 0)
        sums = [self._zeros("ie")]
        first, side = self.bases["i"], self.sides["j"]
        count, whole = ceildiv(self.keys, side), floordiv(self.keys, side)
        if self.causal:
            count = minimum(count, ceildiv(first + self.sides["i"], side))
            whole = minimum(whole, floordiv(first + 1, side))
        self._walk("whole", 0, whole, sums, masked=False)
        if whole != count:
            self._walk("masked", whole, count, sums, masked=True)
        factor = self.emit.constant(self.op.params["scale"], self.dtype)
        self._store(0, self.emit.math("mul", sums[0], factor), "ie")

    def _walk(self, name: str, lower: Size, upper: Size, sums: list[TileValue], *, masked: bool) -> None:
        emit = self.emit
        with emit.loop(f"{name}_block", upper, 1, sums, lower) as carried:
            self.bases["j"] = symbol(f"{name}_block") * self.sides["j"]
            scores = self._dot(self.query, self._operand(2, "ej"), "ij")
            slopes = self._dot(self.grad, self._operand(3, "nj"), "ij")
            weights: Value = self._power(emit.fused(scores, emit.constant(self.unit, self.dtype), self.least))
            if masked:
                seen = emit.math("lt", self._place("j", 1), self._limit())
                weights = emit.where(seen, weights, emit.constant(0.0, self.dtype))
            on_scores = emit.math("mul", weights, emit.math("add", slopes, self.means))
            carried[0] = self._dot(self._rounded(on_scores), self._operand(2, "je"), "ie", carried[0].ssa)

    def _limit(self) -> Value:
        """The first key, for each row, that does not count any more."""
        last = self.emit.place_tile(self.keys, [0, 0], [1, 1], i32)
        if not self.causal:
            return last
        after = self.emit.place_tile(self.bases["i"] + 1, [1, 0], [self.sides["i"], 1], i32)
        return self.emit.math("min", after, last)
