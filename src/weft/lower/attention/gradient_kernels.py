"""The kernels of attention's gradients: of queries, of keys, of values, or of the last two together.

Keys and values that many query heads share may be too few blocks for a machine. Then several programs have a block,
each with a part of the heads, and what they summed up is added up in a kernel of its own, always in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, mod, product, simplify, symbol
from weft.ir.types import Tensor, bf16, f16, i32, tensor_of, u32
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.emit.blocked import BlockedKernel
from weft.lower.emit.body import Axis, TileValue, register_dtype
from weft.lower.emit.kernel import Kernel
from weft.lower.index_space.domain import Domain, Run, Variable, fused
from weft.lower.index_space.evaluate import AddressRecorder, Source
from weft.lower.machine import Machine
from weft.lower.schedule.schedule import Blocks, choose_gradient_blocks, given_blocks
from weft.lower.schedule.vector_attention_blocks import vector_gradient_blocks
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention_dropout import is_kept
from weft.ops.matmul.attention_gradients import AttentionGradients
from weft.tile import dialect as tile

_MANY = 16
"""Programs of each multiprocessor."""
_PART = "part"
_LETTERS = "ijen"
"""Queries, keys, their width and that of the values: the columns of the domain, in this order."""


@dataclass
class GradientKernel:
    """One kernel of them. The rows of its domain are the leading dimensions and the members of a group."""

    OF: ClassVar[str] = ""
    RESULTS: ClassVar[Sequence[int]] = ()
    """The results that it gives, by their numbers."""
    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    op: AttentionGradients
    machine: Machine
    rows: Sequence[Tensor]
    partial: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Of results that several programs have a part of each, [..., parts, keys, width] by their numbers."""
    bases: dict[str, Size] = field(default_factory=dict[str, Size])

    def kernel(self) -> Kernel:
        q, k, v = (tensor_of(value.type) for value in self.op.operands[1:4])
        self.dtype = register_dtype(q.dtype)
        self.narrow = q.dtype
        self.causal: bool = self.op.params["causal"]
        self.unit: float = self.op.params["scale"] * LOG2_E
        self.dropout: float = self.op.params.get("dropout", 0.0)
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
        sizes = self.queries, self.keys, q.shape[-1], v.shape[-1]
        chosen = choose_gradient_blocks(self.OF, sizes, self.machine, dropped=self.dropout > 0)
        if self.machine.capabilities.matrix_units and q.dtype not in (bf16, f16):  # what tensor cores would round
            chosen = vector_gradient_blocks(self.OF, chosen)
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
            scratch=[*self.rows, *self.partial.values()],
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
        return self.machine.capabilities.thread_blocks and self.causal and many and apart and not self.partial

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
        partial = [contiguous(tensor).address(self._partial_index(n, 0)) for n, tensor in self.partial.items()]
        return [*(address.expr for address in recorder.addresses), *stores, *rows, *partial]

    def _partial_index(self, result: int, part: Size) -> list[Size]:
        *lead, key, width = self._index(1 + result)
        return [*lead, part, key, width]

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
        dtype = self.dtype if tensor.dtype.is_float else tensor.dtype
        return TileValue(self._tile_of(self.emit.cast(loaded, dtype)), dtype)

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

    def _is_kept(self, words: Value, axis: int) -> Value:
        """Whether weights were kept, whose keys lie along an axis."""
        return is_kept(self.emit, words, self.emit.cast(self._place("j", axis), u32), self.dropout)

    def _factored(self, result: int, total: Value) -> Value:
        """A sum times what all of its addends lack: the scale, and what kept weights count for."""
        scale = self.op.params["scale"] if result < 2 else 1.0
        factor = scale / (1 - self.dropout)
        return total if factor == 1.0 else self.emit.math("mul", total, self.emit.constant(factor, self.dtype))

    def _store(self, result: int, value: Value, letters: str) -> None:
        if result in self.partial:
            pointer = self.frame.beside[len(self.rows) + [*self.partial].index(result)]
            self.emit.pointers[pointer] = pointer
            self._axes(letters)
            place = self._partial_index(result, symbol(_PART))
            self.emit.store(value, pointer, contiguous(self.partial[result]).address(place))
            return
        for output, layout, target in zip(self.group.yielded, self.outputs, self.frame.targets, strict=True):
            if output is self.op.results[result]:
                self._axes(letters)
                typed = self.emit.cast(value, self.narrow)
                self.emit.store(typed, target, layout.address(self._index(1 + result)))


class OfKeysAndValues(GradientKernel):
    """A program has a block of keys and values, and walks the queries that attend to them, member after member."""

    OF = "keys"
    RESULTS = (1, 2)

    def fill(self) -> None:
        for run in self.lead[:-1]:
            self.frame.program(run)
        self._start("j")
        self._start_part()
        for run in self.lead[-1:]:  # the innermost: programs of a few heads and neighbouring keys run at the same time
            self.frame.program(run)
        self.member = 0
        self.key = self._operand(2, "je")
        self.value = self._operand(3, "jn") if self._has_slopes else None
        first, side = self.bases["j"], self.sides["i"]
        self.count = ceildiv(self.queries, side)
        lower = minimum(self.count, floordiv(first, side)) if self.causal else 0
        upper = maximum(lower, minimum(self.count, ceildiv(first + self.sides["j"] - 1, side))) if self.causal else 0
        state = [*(self._zeros(self._letters(result)) for result in self.RESULTS), *self._rows_of(lower, 0)]
        if self.causal:
            self._walk("masked", lower, upper, state, masked=True)
        self._walk("whole", upper, self.count, state, masked=False)
        for result, total in zip(self.RESULTS, state, strict=False):
            self._store(result, self._factored(result, total), self._letters(result))

    def _start_part(self) -> None:
        """Let each program have as many members of a group, if there are parts of the sums over them."""
        self.first_member: Size = 0
        self.own_members = self.members
        if self.partial:
            parts = next(iter(self.partial.values())).shape[-3]
            self.emit.scalars[_PART] = self.frame.frame.program(parts)
            self.own_members = floordiv(self.members, parts)
            self.first_member = symbol(_PART) * self.own_members

    @property
    def _has_slopes(self) -> bool:
        """Whether the slopes of weights are made: those of values do without."""
        return 1 in self.RESULTS

    def _letters(self, result: int) -> str:
        return "je" if result == 1 else "jn"

    def _rows_of(self, block: Size, member: Size) -> list[TileValue]:
        """What is subtracted from the matmuls of a block of queries; of the last one where there are no more."""
        self.bases["i"] = minimum(block, self.count - 1) * self.sides["i"]
        self.member = self.first_member + member
        numbers = [0, *([1] if self._has_slopes else []), *([2] if self.dropout else [])]
        return [self._of_rows(number, 1) for number in numbers]

    def _walk(self, name: str, lower: Size, upper: Size, state: list[TileValue], *, masked: bool) -> None:
        emit, turn, members = self.emit, symbol(f"{name}_turn"), self.own_members
        with emit.loop(f"{name}_turn", (upper - lower) * members, 1, state) as carried:
            self.bases["i"] = (lower + floordiv(turn, members)) * self.sides["i"]
            self.member = self.first_member + mod(turn, members)
            count = len(self.RESULTS)
            sums, (least, *means) = dict(zip(self.RESULTS, carried, strict=False)), carried[count:]
            # Slopes that begin with what is subtracted save additions; beside one sum alone the assembler would wait
            # for the scores before it moves these numbers into the slopes' registers.
            begun = emit.math("add", self._zeros("ji"), means[0]) if len(sums) == 2 else None
            scores = self._dot(self.key, self._operand(1, "ei"), "ji")
            slopes: Value | None = None
            if self.value is not None:
                start = None if begun is None else self._tile_of(begun)
                slopes = self._dot(self.value, self._operand(0, "ni"), "ji", start)
            weights: Value = self._power(emit.fused(scores, emit.constant(self.unit, self.dtype), least))
            kept = self._is_kept(means[-1], 0) if self.dropout else None
            if masked:
                seen = emit.math("le", self._place("j", 0), self._place("i", 1))
                weights = emit.where(seen, weights, emit.constant(0.0, self.dtype))
            counted = weights
            if kept is not None:
                counted = emit.where(kept, weights, emit.constant(0.0, self.dtype))
            if 2 in sums:
                sums[2] = self._dot(self._rounded(counted), self._operand(0, "in"), "jn", sums[2].ssa)
            if slopes is not None:
                slopes = emit.math("add", slopes, means[0]) if begun is None else slopes
                if kept is not None:
                    slopes = emit.where(kept, slopes, means[0])
                on_scores = emit.math("mul", weights, slopes)
                sums[1] = self._dot(self._rounded(on_scores), self._operand(1, "ie"), "je", sums[1].ssa)
            rows = self._rows_of(lower + floordiv(turn + 1, members), mod(turn + 1, members))
            carried[:] = [*(sums[result] for result in self.RESULTS), *rows]


class OfKeys(OfKeysAndValues):
    """The same for keys alone."""

    RESULTS = (1,)


class OfValues(OfKeysAndValues):
    """The same for values alone, which do without slopes."""

    OF = "values"
    RESULTS = (2,)


class OfQueries(GradientKernel):
    """A program has a block of queries, and walks the keys that they attend to."""

    OF = "queries"
    RESULTS = (0,)

    def fill(self) -> None:
        rest = [*self.lead, *self.within]
        for run in rest[:-1]:
            self.frame.program(run)
        self._start("i", backwards=self.causal)  # the longest programs come first
        for run in rest[-1:]:
            self.frame.program(run)
        self.query, self.grad = self._operand(1, "ie"), self._operand(0, "in")
        self.least, self.means, *self.words = (self._of_rows(number, 0) for number in range(len(self.rows)))
        sums = [self._zeros("ie")]
        first, side = self.bases["i"], self.sides["j"]
        count, whole = ceildiv(self.keys, side), floordiv(self.keys, side)
        if self.causal:
            count = minimum(count, ceildiv(first + self.sides["i"], side))
            whole = minimum(whole, floordiv(first + 1, side))
        self._walk("whole", 0, whole, sums, masked=False)
        if whole != count:
            self._walk("masked", whole, count, sums, masked=True)
        self._store(0, self._factored(0, sums[0]), "ie")

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
            slopes = emit.math("add", slopes, self.means)
            for words in self.words:
                slopes = emit.where(self._is_kept(words, 1), slopes, self.means)
            on_scores = emit.math("mul", weights, slopes)
            carried[0] = self._dot(self._rounded(on_scores), self._operand(2, "je"), "ie", carried[0].ssa)

    def _limit(self) -> Value:
        """The first key, for each row, that does not count any more."""
        last = self.emit.place_tile(self.keys, [0, 0], [1, 1], i32)
        if not self.causal:
            return last
        after = self.emit.place_tile(self.bases["i"] + 1, [1, 0], [self.sides["i"], 1], i32)
        return self.emit.math("min", after, last)
