"""Attention on tensor cores that run beside everything else → one tile kernel whose matmuls overlap with its softmax.

    %q = tile.load ..                              blocks of keys are walked from the last one back
    %s = tile.dot %q, keys of the last block
    %m, %l, %p = softmax of %s, in 16 bits         masked: it may reach beyond the diagonal, or the last key
    tile.for the blocks before it, carrying %m, %l, %p, %kept {
      %s = tile.dot %q, keys of this block
      %o = tile.dot %p, values of the block that was visited before, %kept
      …  = softmax of %s, and %o rescaled }        no mask where all rows see all keys of the block
    tile.store (tile.dot %p, values of the first block, %kept) / %l

A matmul of one iteration is done in the next: while the tensor cores sum up values, the other units raise powers.
Scores stay as the matmul left them; their scale goes into the one multiply-add before the power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, divides, floordiv, maximum, minimum, product, symbol, symbols_of
from weft.ir.types import Tensor, bf16, f16, i32, tensor_of, u32
from weft.lower.attention.attention import AttentionLowering
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.attention.key_ranges import AtMost, Condition, Rows, bound_of
from weft.lower.attention.mask_reading import Kept, read_masks
from weft.lower.attention.paged_keys import find_pages, load_pages
from weft.lower.dispatch import lower
from weft.lower.emit.blocked import BlockedKernel
from weft.lower.emit.body import Axis, TileValue
from weft.lower.emit.kernel import Kernel
from weft.lower.index_space.domain import Run
from weft.lower.index_space.evaluate import Source
from weft.lower.lowered import Argument, KernelCall, Lowered, whole
from weft.lower.regroup import new_group
from weft.ops.body import Value
from weft.ops.graph import GraphBuilder
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention import AnyAttention, widest_head
from weft.ops.matmul.attention_dropout import AttentionWithDropout, word_of_row
from weft.ops.matmul.attention_tangent import AttentionWithTangent
from weft.tile import dialect as tile

_COUNTED = Tensor(i32, (1,))
"""What counts programs of different lengths."""
_MOST_READ_ONCE = 1 << 25
"""Elements of keys that leave the cache first, so that others need not be written back for them."""


def _zeroed(b: GraphBuilder) -> list[SSAValue]:
    return [b.full(value=0, shape=_COUNTED.shape, dtype=_COUNTED.dtype)]


def is_flash(op: AnyAttention | AttentionWithTangent | AttentionWithDropout) -> bool:
    """Whether tensor cores take the matmuls: of 16-bit operands, in heads that tiles hold, whole or in halves."""
    q, k, v = (tensor_of(value.type) for value in op.operands[:3])
    widths, most = (q.shape[-1], v.shape[-1]), widest_head(q.shape[-2])
    return (
        q.dtype in (bf16, f16)
        and all(isinstance(width, int) and 8 <= width <= most and width % 8 == 0 for width in widths)
        and (q.shape[-2] != 1 or len(op.results) == 1)
        and k.shape[-2] not in (0, 1)
        and op.params["scale"] > 0
    )


@dataclass
class FlashLowering(AttentionLowering):
    """The construction of one kernel. Blocks of keys are counted from the last that is visited, which is number 0."""

    reads_pages: ClassVar[bool] = True
    on_tensor_cores: ClassVar[bool] = True

    def lowered(self, inputs: Sequence[StridedLayout]) -> Lowered:
        return self._counted(whole(self._emit(self.lead), len(inputs), len(self.outputs)))

    def _counted(self, found: Lowered) -> Lowered:
        """A kernel, and before it one that sets its counter to 0, if it has one."""
        (call,) = found.calls
        if call.kernel.op.counter is None:
            return found
        group = new_group([], _zeroed)
        (zero,) = lower(group, f"{self.name}_counter", [], [contiguous(_COUNTED)], self.machine).calls
        place = Argument("scratch", len(found.scratch))
        counted = KernelCall(call.kernel, (*call.arguments, place))
        return Lowered((KernelCall(zero.kernel, (place,)), counted), (*found.scratch, _COUNTED))

    @property
    def _beside(self) -> Sequence[Tensor]:
        """The tensors that the kernel reads beside those of its group."""
        return ()

    def _emit(self, lead: Sequence[Run]) -> Kernel:
        kernel = BlockedKernel(
            self.group, self.name, self.layouts, self.outputs, self.domain, parts=True, scratch=self._beside
        )
        self._place(kernel, lead)
        self._store(kernel, self._attended())
        programs = product(kernel.frame.grid)
        many = not isinstance(programs, int) or programs >= 2 * self.machine.multiprocessors
        grows = self.causal and self.range.lower == 0  # the later rows are, the more keys they see
        paired = grows and many and len(kernel.frame.grid) == len(lead) + 1
        turns = self.visited - self.lowest + self.before
        unequal = bool(symbols_of(turns) - set(kernel.frame.symbols))
        counter = kernel.frame.add_pointer(_COUNTED.dtype) if unequal and many and not paired else None
        return kernel.frame.finish(self.blocks, paired=paired, counter=counter)

    def _place(self, kernel: BlockedKernel, lead: Sequence[Run]) -> None:
        """Say which rows a program has, and which keys these see."""
        self.emit = kernel.emit
        self.sides = dict(zip("ijen", self.blocks.sides, strict=True))
        for run in lead[:-1]:
            kernel.program(run)
        first = self._first_row(kernel)
        for run in lead[-1:]:  # the innermost: programs of a few heads and neighbouring rows run at the same time
            kernel.program(run)
        self.bases = {"i": first, "e": 0, "n": kernel.start_of(self.runs["n"], self.sides["n"])}
        self.keys_are_own = self._are_keys_own(lead)
        bi, bj = self.sides["i"], self.sides["j"]
        row = self.runs["i"].name if "i" in self.runs else ""
        self.rows = Rows(row, self.runs["j"].name, first, bi, self.keys)
        self.masks = read_masks(self)
        self.capped = bool(self.op.params.get("softcap"))
        self.unit = 1.0 if self.masks.added or self.capped else self._scale
        self.range = self.masks.range
        self.lowest = minimum(floordiv(self.range.lower, bj), ceildiv(self.keys, bj) - 1)
        self.visited = maximum(ceildiv(self.range.upper, bj), self.lowest + 1)
        self.before = minimum(maximum(0, ceildiv(self.range.prefix, bj)), self.lowest)
        self.limit: Size = self.keys
        self.known_pages: dict[tuple[SSAValue, Size], Size] = {}

    def _attended(self) -> Sequence[TileValue]:
        """The greatest scores in units of powers of two, the sums of powers, and of values weighted by them."""
        self.query = self._operand(0, self._q_index(), "ie")
        if self.dropout:
            self.emit.axes.clear()
            self.words = word_of_row(self.emit, self._word_of_head(), self.emit.cast(self._places("i", 0), u32))
        state = self._first()
        last = self._visit(state)
        most, total, weights, kept = state
        product = self._summed(weights, kept, self._start_of(last))
        return [self._typed(self.emit.math("mul", most, self._constant(self.unit))), total, product]

    def _visit(self, state: list[TileValue]) -> Size:
        """Walk the blocks of keys behind the first: those that have edges by masks. It gives the last one's number."""
        bi, bj = self.sides["i"], self.sides["j"]
        count = self.visited - self.lowest
        start, stop = (floordiv(key, bj) for key in (self.range.every[0] + bj - 1, self.range.every[1]))
        whole = minimum(count, maximum(1, self.visited - stop))
        # A tile of rows that lies within one block of keys meets the diagonal, or the last key, in one block only.
        if not self.masks.kept and not self.masks.local and (not self.causal or bj % bi == 0):
            whole = 1
        all_blocks = count + self.before
        if self.masks.certain:
            edge = count if start == 0 else minimum(count, maximum(whole, self.visited - start))
            if whole != 1:
                self._walk("upper", 1, whole, state, self.masks.upper)
            self._walk("whole", whole, edge, state, None)
            if start != 0 or self.before != 0:
                self._walk("lower", edge, all_blocks, state, self.masks.lower, ends=not self.masks.apart)
        else:
            self._walk("masked", 1, all_blocks, state, self.masks.kept)
        return all_blocks - 1

    @property
    def _scale(self) -> float:
        return self.op.params["scale"] * LOG2_E

    def _constant(self, number: float) -> Value:
        return self.emit.constant(number, self.dtype)

    def _first_row(self, kernel: BlockedKernel) -> Size:
        """The first row of this program's tile; where later rows see more keys, the longest programs come first."""
        size = self.runs["i"].size if "i" in self.runs else 1
        side = self.sides["i"]
        count = ceildiv(size, side)
        if count == 1:
            return 0
        name = f"{self.runs['i'].name}_block"
        kernel.emit.scalars[name] = kernel.frame.program(count)
        return (count - 1 - symbol(name) if self.causal else symbol(name)) * side

    # -- blocks of keys ----------------------------------------------------------------------------------------------

    def _first(self) -> list[TileValue]:
        """The block that is visited first: nothing is summed up yet."""
        bi, bn = self.sides["i"], self.sides["n"]
        start, kept = self._first_block()
        scores = self._marked(self._scores_at(start), start, kept)
        most = self.emit.reduce_axis(scores, "max", 1, self.dtype)
        powers = self._powers(scores, self._base(most, kept))
        total = self.emit.reduce_axis(powers, "sum", 1, self.dtype)
        return [most, total, self._weights(powers), self._full(0.0, (bi, bn))]

    def _first_block(self) -> tuple[Size, Kept | None]:
        """Where the keys of the block that is visited first begin, and which masks it has."""
        masked = self.causal or self._is_cut or bool(self.masks.kept) or self.masks.local
        return (self.visited - 1) * self.sides["j"], self.masks.upper if masked else None

    def _walk(
        self, name: str, lower: Size, upper: Size, state: list[TileValue], masks: Kept | None, *, ends: bool = True
    ) -> None:
        """Visit blocks; `ends` says that the last key that counts for a row may lie in one."""
        with self.emit.loop(f"{name}_block", upper, 1, state, lower) as carried:
            start, before = (self._start_of(symbol(f"{name}_block") - back) for back in (0, 1))
            self._find_pages(start, before)
            greatest, total, weights, kept = carried
            scores = self._scores_at(start)
            product = self._summed(weights, kept, before)
            scores = self._marked(scores, start, masks, ends=ends)
            most, total, powers, rescale = self._softened(scores, greatest, total, masks)
            kept = self._typed(self.emit.math("mul", product, rescale))
            carried[:] = [most, total, self._weights(powers), kept]
        self.known_pages.clear()

    def _find_pages(self, keys: Size, values: Size) -> None:
        """Read where the pages of an iteration are before any is waited for: all these numbers come at the same
        time.
        """
        self.known_pages.clear()
        for number, start in ((1, keys), (2, values)):
            if number in self.pages:
                find_pages(self, self.pages[number], start)

    def _start_of(self, number: Size) -> Size:
        """The first key of a block: blocks of the range are visited from the last one back, then the first keys'."""
        block = self.visited - 1 - number
        if self.before != 0:
            is_behind = minimum(1, maximum(0, self.lowest - block))
            block = block - is_behind * (self.lowest - self.before)
        return block * self.sides["j"]

    def _softened(
        self, scores: Value, greatest: TileValue, total: TileValue, masks: Kept | None
    ) -> tuple[TileValue, TileValue, TileValue, TileValue]:
        """The greatest scores, the sums of powers, the powers of a block, and what earlier sums are to be scaled by."""
        emit = self.emit
        most = self._typed(emit.math("max", greatest, emit.reduce_axis(scores, "max", 1, self.dtype)))
        base = self._base(most, masks)
        rescale = self._power(emit.math("mul", emit.math("sub", greatest, base), self._constant(self.unit)))
        powers = self._powers(scores, base)
        sums = emit.math("add", emit.math("mul", total, rescale), emit.reduce_axis(powers, "sum", 1, self.dtype))
        return most, self._typed(sums), powers, rescale

    def _scores_at(self, start: Size) -> TileValue:
        """The queries times a block of keys."""
        self.bases["j"] = start
        keys = self._operand(1, self._k_index(), "ej")
        return TileValue(self._dot(self.query, keys, (self.sides["i"], self.sides["j"])), self.dtype)

    def _weights(self, powers: TileValue) -> TileValue:
        if self.dropout:
            powers = self._dropped(powers, self.words, self.emit.cast(self._places("j", 0), u32))
        return self._typed(self.emit.cast(powers, tensor_of(self.op.operands[2].type).dtype))

    def _summed(self, weights: TileValue, kept: TileValue, start: Size) -> TileValue:
        """What was kept and, weighted, the values of a block."""
        self.bases["j"] = start
        values = self._operand(2, self._v_index(), "jn")
        shape = (self.sides["i"], self.sides["n"])
        return TileValue(self._dot(weights.ssa, values, shape, kept.ssa), self.dtype)

    def _divided(self, product: TileValue, divisor: Value) -> TileValue:
        """By one division a row: what is lost by that is far less than by narrowing the result."""
        return self._typed(self.emit.math("mul", product, self.emit.math("div", self._constant(1.0), divisor)))

    # -- softmax -----------------------------------------------------------------------------------------------------

    def _base(self, most: TileValue, masks: Kept | None) -> Value:
        """What is subtracted: the greatest score, or nothing in a row that has seen no key."""
        if masks is None and (self.masks.local or not self.masks.added):
            return most
        emit = self.emit
        return emit.where(emit.math("eq", most, self._constant(float("-inf"))), self._constant(0.0), most)

    def _powers(self, scores: Value, base: Value) -> TileValue:
        emit = self.emit
        unit = self._constant(self.unit)
        return self._power(emit.fused(scores, unit, emit.math("neg", emit.math("mul", base, unit))))

    def _power(self, value: Value) -> TileValue:
        return self.emit.map("exp2", [value], self.dtype, **{tile.FLUSHES: UnitAttr()})

    def _marked(self, scores: Value, start: Size, masks: Kept | None, *, ends: bool = True) -> Value:
        """Scores in units of `unit`, with nothing where a key does not count; without masks, all do."""
        emit = self.emit
        self.bases["j"] = start
        if self.unit == 1.0:
            scores = emit.math("mul", scores, self._constant(self._scale))
        if self.capped:
            scores = self._capped(scores)
        for mask in self.masks.added if masks is not None or not self.masks.local else ():
            scores = self._added(scores, self._mask_tile(mask))
        if masks is None:
            return scores
        nothing = self._constant(float("-inf"))
        for mask, condition in masks:
            holds = self._mask_tile(mask) if condition is None else self._holds(condition)
            scores = emit.where(holds, scores, nothing)
        if not ends or (not self.causal and not self._is_cut):
            return scores
        return emit.where(emit.math("lt", self._places("j", 0), self._limit()), scores, nothing)

    def _capped(self, scores: Value) -> Value:
        """The same by a power and a division, which give 16 bits all their digits."""
        emit = self.emit
        cap: float = self.op.params["softcap"] * LOG2_E
        # tanh(x) = 1 - 2 / (e^2x + 1)
        power = emit.math("exp2", emit.math("mul", scores, self._constant(2 * LOG2_E / cap)))
        part = emit.math("div", self._constant(2 * cap), emit.math("add", power, self._constant(1.0)))
        return emit.math("sub", self._constant(cap), part)

    @property
    def _is_cut(self) -> bool:
        """Whether a block may reach beyond the last key."""
        return self.limit is not self.keys or not (isinstance(self.keys, int) and self.keys % self.sides["j"] == 0)

    def _mask_tile(self, mask: SSAValue) -> Value:
        tensor = tensor_of(mask.type)
        self._axes("i", "j")
        return self.emit.at(Source(mask, tensor), self._mask_index(tensor))

    def _holds(self, condition: Condition) -> Value:
        """A condition on places, which the rows and keys of a tile are compared by."""
        emit = self.emit
        if not isinstance(condition, AtMost):
            one, *others = map(self._holds, condition.conditions)
            for other in others:
                one = emit.math(condition.kind, one, other)
            return one
        bound = bound_of(condition.expr, self.rows)
        assert bound is not None
        limit = emit.place_tile(
            bound.limit + bound.slope * self.rows.first,
            [bound.slope, 0],
            [self.sides["i"] if bound.slope else 1, 1],
            i32,
        )
        if bound.step == 0:
            return emit.math("le", limit, emit.constant(0, i32))
        return emit.math("le" if bound.step > 0 else "ge", self._places("j", 0), limit)

    def _limit(self) -> Value:
        """The first key, for each row, that does not count any more."""
        last = self.emit.place_tile(self.limit, [0, 0], [1, 1], i32)
        return self.emit.math("min", self._places("i", 1), last) if self.causal else last

    def _places(self, letter: str, ahead: int) -> TileValue:
        """Rows or keys by number: of all places of a tile, those beyond the last one too."""
        axis = "ij".index(letter)
        strides, shape = [0, 0], [1, 1]
        strides[axis], shape[axis] = 1, self.sides[letter]
        return self.emit.place_tile(self.bases[letter] + ahead, strides, shape, i32)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def _operand(self, number: int, index: Sequence[Size], letters: str) -> SSAValue:
        """A tile of an operand as it lies in memory."""
        if number in self.pages:
            return load_pages(self, self.pages[number], self.bases["j"], letters)
        self._axes(*letters)
        value = self.op.operands[number]
        element = self.emit.at(Source(value, tensor_of(value.type)), index)
        if self.keys_are_own and isinstance(element, TileValue) and isinstance(element.ssa.owner, tile.LoadOp):
            element.ssa.owner.once = UnitAttr()
        return self._tile(element, (self.sides[letters[0]], self.sides[letters[1]]))

    def _are_keys_own(self, lead: Sequence[Run]) -> bool:
        """Whether no other program reads the same keys: there is one tile of rows, and heads have keys of their own.

        If there are many it is better not to say so.
        """
        key = self.op.operands[1]
        count = product(tensor_of(key.type).shape)
        if key not in self.layouts or not isinstance(count, int) or count > _MOST_READ_ONCE:
            return False
        address = self.emit.resolve(self.layouts[key].address(self._k_index()))
        rows = self.runs["i"].size if "i" in self.runs else 1
        apart = all(run.name in symbols_of(address) for run in lead) and not divides(address)
        return ceildiv(rows, self.sides["i"]) == 1 and apart

    def _axes(self, first: str, second: str) -> None:
        self.emit.axes.clear()
        for scope in self.emit.scopes:  # what was read of another block of keys is none of this one
            scope.clear()
        for position, letter in enumerate((first, second)):
            if letter not in self.runs:  # a single row
                continue
            run, base, side = self.runs[letter], self.bases[letter], self.sides[letter]
            whole = isinstance(run.size, int) and run.size % side == 0
            extent = side if whole else minimum(side, run.size - base)
            self.emit.axes[run.name] = Axis(run.name, position, base, side, extent, run.size)
