"""Attention with its tangent → one tile kernel: scores and slopes, the tangents of scores, block by block.

    tile.for j in blocks of keys, carrying greatest, total, mean, sum and tangent {
      %s = tile.dot %q, keys                              scores, and their tangents:
      %t = tile.dot %q, tangents of keys, (tile.dot tangents of %q, keys)
      %p = 2^(%s - greatest)  ;  %d = %p * %t
      total + row sum of %p   ;  mean + row sum of %d     what was summed up before is rescaled
      sum + %p @ values       ;  tangent + %d @ values + %p @ tangents of values }
    tile.store sum / total, and tangent / total - (mean / total) * (sum / total)

Weights, and slopes by them, live for a block only. In a row without any key all sums are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from weft.ir.expr import Size, symbol
from weft.ir.types import tensor_of
from weft.lower.attention.attention import AttentionLowering
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.attention.flash_attention import FlashLowering
from weft.lower.attention.mask_reading import Kept
from weft.lower.emit.blocked import BlockedKernel, store_outputs
from weft.lower.emit.body import TileValue
from weft.ops.body import Value
from weft.ops.matmul.attention_tangent import AttentionWithTangent


class _Tangents(AttentionLowering):
    """What both ways share: which operands are tangents, and what becomes of the sums."""

    @property
    def moved(self) -> AttentionWithTangent:
        assert isinstance(self.op, AttentionWithTangent)
        return self.op

    def _factor_indices(self) -> list[list[Size]]:
        indices = {"q": self._q_index(), "k": self._k_index(), "v": self._v_index()}
        return [*indices.values(), *(indices[letter] for letter in self.op.params["moved"])]

    @property
    def _slope_pairs(self) -> list[tuple[int, int]]:
        """The operands whose products add up to slopes: tangents of queries and keys, queries and tangents of keys."""
        queries, keys = self.moved.tangent("q"), self.moved.tangent("k")
        pairs = [] if queries is None else [(queries, 1)]
        return pairs if keys is None else [*pairs, (0, keys)]

    def _store(self, kernel: BlockedKernel, sums: Sequence[TileValue]) -> None:
        most, total, mean, product, tangent = sums
        self._axes("i", "n")
        emit = self.emit
        undefined: bool = self.op.params.get("undefined", False)
        value, lse = self._quotients(most, total, product, undefined=undefined)
        one, none = emit.constant(1.0, self.dtype), emit.constant(0.0, self.dtype)
        divisor: Value = total if undefined else emit.where(emit.math("eq", total, none), one, total)
        along = self._divided(mean, divisor)
        moved = emit.math("sub", self._divided(tangent, divisor), emit.math("mul", along, value))
        found = value, lse, self._typed(moved), along
        products: dict[SSAValue, TileValue] = {
            result: TileValue(each.ssa, tensor_of(result.type).dtype)
            for result, each in zip(self.op.results, found, strict=True)
        }
        store_outputs(kernel, products)


@dataclass
class TangentLowering(_Tangents):
    """The construction of a kernel of vectors."""

    def _begun(self) -> list[TileValue]:
        most, total, product = super()._begun()
        bi, bn = self.sides["i"], self.sides["n"]
        self.queries: dict[int, SSAValue] = {}
        if self._width_is_whole:
            self.queries = {number: self._query(number) for number, _ in self._slope_pairs if number != 0}
        return [most, total, self._full(0.0, (bi, 1)), product, self._full(0.0, (bi, bn))]

    def _whole_query(self, number: int) -> SSAValue:
        return self.queries[number] if number in self.queries else super()._whole_query(number)

    def _turn(self, state: Sequence[TileValue]) -> list[TileValue]:
        emit, shape = self.emit, (self.sides["i"], self.sides["n"])
        greatest, total, mean, product, tangent = state
        scores = self._scores()
        # Both factors of a product have the scale; scores are in units of powers of two, slopes are not.
        slopes = self._products(self._slope_pairs) if self._slope_pairs else None
        most, sums, powers, rescale = self._weighed(scores, greatest, total)
        moving = None
        if slopes is not None:
            natural = emit.math("mul", slopes, emit.constant(1 / LOG2_E, self.dtype))
            moving = self._typed(emit.math("mul", powers, natural))
            added = emit.reduce_axis(moving, "sum", 1, self.dtype)
            mean = self._typed(emit.math("add", emit.math("mul", mean, rescale), added))
        values = self._values(2)
        kept, along = (self._typed(emit.math("mul", each, rescale)).ssa for each in (product, tangent))
        kept = self._dot(powers.ssa, values, shape, kept)
        if moving is not None:
            along = self._dot(moving.ssa, values, shape, along)
        if (number := self.moved.tangent("v")) is not None:
            along = self._dot(powers.ssa, self._values(number), shape, along)
        return [most, sums, mean, TileValue(kept, self.dtype), TileValue(along, self.dtype)]


@dataclass
class FlashTangentLowering(_Tangents, FlashLowering):
    """The construction of a kernel for tensor cores; three times the products of attention alone hide its softmax."""

    reads_pages: ClassVar[bool] = False

    def _attended(self) -> Sequence[TileValue]:
        self._read_queries()
        state = self._first()
        self._visit(state)
        most, *sums = state
        return [self._typed(self.emit.math("mul", most, self._constant(self.unit))), *sums]

    def _read_queries(self) -> None:
        self.queries = {
            number: self._operand(number, self._q_index(), "ie")
            for number in (0, self.moved.tangent("q"))
            if number is not None
        }

    def _first(self) -> list[TileValue]:
        start, masks = self._first_block()
        scores, slopes = self._products_at(start)
        scores = self._marked(scores, start, masks)
        most = self.emit.reduce_axis(scores, "max", 1, self.dtype)
        powers = self._powers(scores, self._base(most, masks))
        total = self.emit.reduce_axis(powers, "sum", 1, self.dtype)
        rows, sums = (self.sides["i"], 1), (self.sides["i"], self.sides["n"])
        begun = [self._full(0.0, rows), self._full(0.0, sums), self._full(0.0, sums)]
        return [most, total, *self._summed_up(start, powers, slopes, *begun)]

    def _walk(
        self, name: str, lower: Size, upper: Size, state: list[TileValue], masks: Kept | None, *, ends: bool = True
    ) -> None:
        with self.emit.loop(f"{name}_block", upper, 1, state, lower) as carried:
            start = self._start_of(symbol(f"{name}_block"))
            greatest, total, *sums = carried
            scores, slopes = self._products_at(start)
            scores = self._marked(scores, start, masks, ends=ends)
            most, total, powers, rescale = self._softened(scores, greatest, total, masks)
            kept = [self._typed(self.emit.math("mul", each, rescale)) for each in sums]
            carried[:] = [most, total, *self._summed_up(start, powers, slopes, *kept)]

    def _products_at(self, start: Size) -> tuple[TileValue, TileValue | None]:
        """Scores of a block of keys, and their tangents before they are scaled."""
        self.bases["j"] = start
        shape = (self.sides["i"], self.sides["j"])
        keys = {1: self._operand(1, self._k_index(), "ej")}
        scores = self._dot(self.queries[0], keys[1], shape)
        slopes: SSAValue | None = None
        for query, key in self._slope_pairs:
            if key not in keys:
                keys[key] = self._operand(key, self._k_index(), "ej")
            slopes = self._dot(self.queries[query], keys[key], shape, slopes)
        return TileValue(scores, self.dtype), None if slopes is None else TileValue(slopes, self.dtype)

    def _summed_up(
        self,
        start: Size,
        powers: TileValue,
        slopes: TileValue | None,
        mean: TileValue,
        product: TileValue,
        tangent: TileValue,
    ) -> list[TileValue]:
        """The sums of slopes, values, and what tangents are made of, with those of a block of keys."""
        emit, shape = self.emit, (self.sides["i"], self.sides["n"])
        self.bases["j"] = start
        weights, along = self._weights(powers).ssa, tangent.ssa
        values = self._operand(2, self._v_index(), "jn")
        summed = self._dot(weights, values, shape, product.ssa)
        if slopes is not None:
            scale = self._constant(self.op.params["scale"])
            moving = self._typed(emit.math("mul", powers, emit.math("mul", slopes, scale)))
            mean = self._typed(emit.math("add", mean, emit.reduce_axis(moving, "sum", 1, self.dtype)))
            along = self._dot(self._weights(moving).ssa, values, shape, along)
        if (number := self.moved.tangent("v")) is not None:
            along = self._dot(weights, self._operand(number, self._v_index(), "jn"), shape, along)
        return [mean, TileValue(summed, self.dtype), TileValue(along, self.dtype)]
