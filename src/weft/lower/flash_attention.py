"""Attention on tensor cores that run beside everything else → one tile kernel whose products overlap with its softmax.

    %q = tile.load ..                              blocks of keys are walked from the last one back
    %s = tile.dot %q, keys of the last block
    %m, %l, %p = softmax of %s, in 16 bits         masked: it may reach beyond the diagonal, or the last key
    tile.for the blocks before it, carrying %m, %l, %p, %kept {
      %s = tile.dot %q, keys of this block
      %o = tile.dot %p, values of the block that was visited before, %kept
      …  = softmax of %s, and %o rescaled }        no mask where all rows see all keys of the block
    tile.store (tile.dot %p, values of the first block, %kept) / %l

A product of one turn is done in the next: while the tensor cores sum up values, the other units raise powers. Scores
stay as the product left them; their scale goes into the one multiply-add before the power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, symbol
from weft.ir.types import bf16, boolean, f16, i32, tensor_of
from weft.lower.attention import LOG2_E, AttentionLowering
from weft.lower.blocked import BlockedKernel
from weft.lower.domain import Run
from weft.lower.emit import Axis, TileValue
from weft.lower.evaluate import Source
from weft.lower.kernels import Kernel
from weft.ops.attention import AnyAttention
from weft.ops.body import Value
from weft.tile import dialect as tile

_MOST_WIDTH = 256


def is_flash(op: AnyAttention) -> bool:
    """Whether tensor cores take the products: of 16-bit operands, in heads that one tile holds."""
    q, k, v = (tensor_of(value.type) for value in op.operands[:3])
    widths = q.shape[-1], v.shape[-1]
    return (
        q.dtype in (bf16, f16)
        and all(isinstance(width, int) and 8 <= width <= _MOST_WIDTH and width % 8 == 0 for width in widths)
        and q.shape[-2] != 1
        and k.shape[-2] not in (0, 1)
        and op.params["scale"] > 0
    )


@dataclass
class FlashLowering(AttentionLowering):
    """The construction of one kernel. Blocks of keys are counted from the last that is visited, which is number 0."""

    def _emit(self, lead: Sequence[Run]) -> Kernel:
        kernel = BlockedKernel(self.group, self.name, self.layouts, self.outputs, self.domain, parts=True)
        self.emit = kernel.emit
        self.sides = dict(zip("ijen", self.blocks.sides, strict=True))
        for run in lead[:-1]:
            kernel.program(run)
        first = self._first_row(kernel)
        for run in lead[-1:]:  # the innermost: programs of a few heads and neighbouring rows run at the same time
            kernel.program(run)
        bi, bj = self.sides["i"], self.sides["j"]
        self.bases = {"i": first, "e": 0, "n": 0}
        self.visited = ceildiv(self.keys, bj)
        whole = floordiv(self.keys, bj)
        if self.causal:
            self.visited = minimum(self.visited, ceildiv(first + bi, bj))
            whole = minimum(whole, floordiv(first + 1, bj))
        masks = self.op.operands[3:]
        self.unit = 1.0 if any(tensor_of(mask.type).dtype != boolean for mask in masks) else self._scale
        self.query = self._operand(0, self._q_index(), "ie")
        state = self._first()
        if masks:
            self._walk("masked", 1, self.visited, state, masked=True)
        else:
            # A tile of rows that lies within one block of keys meets the diagonal, or the last key, in one block only.
            once = not self.causal or bj % bi == 0
            from_ = 1 if once else maximum(1, self.visited - whole)
            if not once:
                self._walk("masked", 1, from_, state, masked=True)
            self._walk("whole", from_, self.visited, state, masked=False)
        most, total, weights, kept = state
        product = self._summed(weights, kept, 0)
        scaled = self._typed(self.emit.math("mul", most, self.emit.constant(self.unit, self.dtype)))
        self._store(kernel, scaled, total, product)
        return kernel.frame.finish(self.blocks)

    @property
    def _scale(self) -> float:
        return self.op.params["scale"] * LOG2_E

    def _first_row(self, kernel: BlockedKernel) -> Size:
        """The first row of this program's tile; where later rows see more keys, the longest programs come first."""
        size, side = self.runs["i"].size, self.sides["i"]
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
        bj = self.sides["j"]
        masked = self.causal or len(self.op.operands) > 3 or not (isinstance(self.keys, int) and self.keys % bj == 0)
        start = (self.visited - 1) * bj
        scores = self._marked(self._scores_at(start), start, masked)
        most = self.emit.reduce_axis(scores, "max", 1, self.dtype)
        powers = self._powers(scores, self._base(most, masked))
        total = self.emit.reduce_axis(powers, "sum", 1, self.dtype)
        return [most, total, self._weights(powers), self._full(0.0, (bi, bn))]

    def _walk(self, name: str, lower: Size, upper: Size, state: list[TileValue], *, masked: bool) -> None:
        emit = self.emit
        with emit.loop(f"{name}_block", upper, 1, state, lower) as carried:
            start = (self.visited - 1 - symbol(f"{name}_block")) * self.sides["j"]
            greatest, total, weights, kept = carried
            scores = self._scores_at(start)
            product = self._summed(weights, kept, start + self.sides["j"])
            scores = self._marked(scores, start, masked)
            most = self._typed(emit.math("max", greatest, emit.reduce_axis(scores, "max", 1, self.dtype)))
            base = self._base(most, masked)
            unit = emit.constant(self.unit, self.dtype)
            rescale = self._power(emit.math("mul", emit.math("sub", greatest, base), unit))
            powers = self._powers(scores, base)
            sums = emit.math("add", emit.math("mul", total, rescale), emit.reduce_axis(powers, "sum", 1, self.dtype))
            kept = self._typed(emit.math("mul", product, rescale))
            carried[:] = [most, self._typed(sums), self._weights(powers), kept]

    def _scores_at(self, start: Size) -> TileValue:
        """The queries times a block of keys."""
        self.bases["j"] = start
        keys = self._operand(1, self._k_index(), "ej")
        return TileValue(self._dot(self.query, keys, (self.sides["i"], self.sides["j"])), self.dtype)

    def _weights(self, powers: TileValue) -> TileValue:
        return self._typed(self.emit.cast(powers, tensor_of(self.op.operands[2].type).dtype))

    def _summed(self, weights: TileValue, kept: TileValue, start: Size) -> TileValue:
        """What was kept and, weighted, the values of a block."""
        self.bases["j"] = start
        values = self._operand(2, self._v_index(), "jn")
        shape = (self.sides["i"], self.sides["n"])
        return TileValue(self._dot(weights.ssa, values, shape, kept.ssa), self.dtype)

    # -- softmax -----------------------------------------------------------------------------------------------------

    def _base(self, most: TileValue, masked: bool) -> Value:
        """What is subtracted: the greatest score, or nothing in a row that has seen no key."""
        if not masked:
            return most
        emit = self.emit
        nothing, none = emit.constant(float("-inf"), self.dtype), emit.constant(0.0, self.dtype)
        return emit.where(emit.math("eq", most, nothing), none, most)

    def _powers(self, scores: Value, base: Value) -> TileValue:
        emit = self.emit
        unit = emit.constant(self.unit, self.dtype)
        return self._power(emit.fused(scores, unit, emit.math("neg", emit.math("mul", base, unit))))

    def _power(self, value: Value) -> TileValue:
        return self.emit.map("exp2", [value], self.dtype, **{tile.FLUSHES: UnitAttr()})

    def _marked(self, scores: Value, start: Size, masked: bool) -> Value:
        """Scores in units of `unit`, with nothing where a key does not count."""
        if not masked:
            return scores
        emit = self.emit
        nothing = emit.constant(float("-inf"), self.dtype)
        self.bases["j"] = start
        for mask in self.op.operands[3:]:
            tensor = tensor_of(mask.type)
            self._axes("i", "j")
            value = emit.at(Source(mask, tensor), self._mask_index(tensor))
            if tensor.dtype == boolean:
                scores = emit.where(value, scores, nothing)
            else:
                scores = self._added(emit.math("mul", scores, emit.constant(self._scale, self.dtype)), value)
        return emit.where(emit.math("lt", self._place("j", 0), self._limit()), scores, nothing)

    def _limit(self) -> Value:
        """The first key, for each row, that does not count any more."""
        last = self.emit.place_tile(self.keys, [0, 0], [1, 1], i32)
        return self.emit.math("min", self._place("i", 1), last) if self.causal else last

    def _place(self, letter: str, ahead: int) -> TileValue:
        """Rows or keys by number: of all places of a tile, those beyond the last one too."""
        axis = "ij".index(letter)
        strides, shape = [0, 0], [1, 1]
        strides[axis], shape[axis] = 1, self.sides[letter]
        return self.emit.place_tile(self.bases[letter] + ahead, strides, shape, i32)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def _operand(self, number: int, index: Sequence[Size], letters: str) -> SSAValue:
        """A tile of an operand as it lies in memory."""
        self._axes(*letters)
        value = self.op.operands[number]
        element = self.emit.at(Source(value, tensor_of(value.type)), index)
        return self._tile(element, (self.sides[letters[0]], self.sides[letters[1]]))

    def _axes(self, first: str, second: str) -> None:
        self.emit.axes.clear()
        for scope in self.emit.scopes:  # what was read of another block of keys is none of this one
            scope.clear()
        for position, letter in enumerate((first, second)):
            run, base, side = self.runs[letter], self.bases[letter], self.sides[letter]
            whole = isinstance(run.size, int) and run.size % side == 0
            extent = side if whole else minimum(side, run.size - base)
            self.emit.axes[run.name] = Axis(run.name, position, base, side, extent, run.size)
