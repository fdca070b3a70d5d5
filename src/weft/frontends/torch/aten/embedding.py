"""Bags of embeddings: rows of a table summed, averaged or maximised over runs of indices.

What torch's forward keeps for its backward (the bag of each index, the sizes of bags) varies with the kernel it takes,
so the backward here computes it from the indices and offsets again; only the places of maxima are handed over. The rest
is there for torch's own backward, which makes sparse gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.dtypes import HALF
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_places, check_that
from weft.ir.expr import Size
from weft.ir.types import DType, Tensor, f32, i64

_SUM, _MEAN, _MAX = range(3)


@dataclass(frozen=True)
class Bags:
    """Which bag each index is in, and which indices count."""

    b: ImportBuilder
    indices: SSAValue
    bag: SSAValue
    count: Size
    padding: int

    @staticmethod
    def of(b: ImportBuilder, indices: SSAValue, offsets: SSAValue, count: Size, padding: int) -> Bags:
        """The bags that start at the first `count` offsets."""
        (length,) = b.shape(indices)
        if b.rank(offsets) != 1:
            raise UnsupportedError("bags without offsets")
        starts = b.emit("slice", b.to(offsets, i64), starts=(0,), shape=(count,), steps=(1,))
        # An empty bag at the end starts beyond the last index.
        marks = b.zeros(Tensor(i64, (length + 1,)))
        ones = b.expand(b.number(1, i64), (count,))
        marks = b.emit("index_put", marks, starts, ones, dims=(0,), position=0, accumulate=True)
        passed = b.emit("cumsum", marks, dim=0)
        inside = b.emit("slice", passed, starts=(0,), shape=(length,), steps=(1,))
        return Bags(b, b.to(indices, i64), b.emit("sub", inside, b.number(1, i64)), count, padding)

    def counted(self, rows: SSAValue, neutral: float = 0.0) -> SSAValue:
        """The rows, with those of the padding index replaced."""
        if self.padding < 0:
            return rows
        skipped = self.b.emit("eq", self.indices, self.b.number(self.padding, i64))
        skipped = self.b.unsqueeze(skipped, *range(1, self.b.rank(rows)))
        return self.b.emit("where", skipped, self.b.number(neutral, self.b.dtype(rows)), rows)

    def sums(self, rows: SSAValue) -> SSAValue:
        """The sum of the rows of each bag."""
        target = self.b.zeros(Tensor(self.b.dtype(rows), (self.count, *self.b.shape(rows)[1:])))
        return self.b.emit("index_put", target, self.bag, rows, dims=(0,), position=0, accumulate=True)

    def sizes(self, dtype: DType) -> SSAValue:
        """How many indices of each bag count, [bags, 1]."""
        (length,) = self.b.shape(self.indices)
        return self.b.unsqueeze(self.sums(self.counted(self.b.expand(self.b.number(1, dtype), (length,)))), 1)

    def kept(self, results: Sequence[Tensor | None]) -> list[SSAValue]:
        """What eager keeps for its backward: the bag of each index, where it does, the sizes of bags, no maxima."""
        b = self.b
        bag, sizes, maxima = (result for result in results if result is not None)
        length = b.shape(self.indices)
        counted = b.to(b.view(self.sizes(i64), (self.count,)), sizes.dtype)
        return [
            b.to(self.bag, bag.dtype) if bag.shape == length else b.zeros(bag),
            counted if sizes.shape == (self.count,) else b.zeros(sizes),
            b.zeros(maxima),
        ]

    def spread(self, values: SSAValue) -> SSAValue:
        """For each index, the row that its bag has."""
        return self.b.emit("take", values, self.bag, dim=0)

    def maxima(self, rows: SSAValue) -> tuple[SSAValue, SSAValue]:
        """The greatest elements of each bag, 0 where it is empty, and the indices of their rows."""
        b, dtype = self.b, self.b.dtype(rows)
        length, width = b.shape(rows)
        where = b.expand(b.unsqueeze(self.bag, 1), (length, width))
        low = b.expand(b.number(-math.inf, dtype), (self.count, width))
        best = b.emit("scatter", low, where, self.counted(rows, -math.inf), dim=0, kind="max")
        chosen = b.emit("eq", rows, b.emit("take", best, self.bag, dim=0))
        last = b.number(length - 1, i64)
        place = b.emit("where", chosen, b.unsqueeze(b.iota_of(length), 1), last)
        first = b.emit("scatter", b.expand(last, (self.count, width)), where, place, dim=0, kind="min")
        empty = b.emit("eq", self.sizes(dtype), b.number(0, dtype))
        return b.emit("where", empty, b.number(0, dtype), best), b.emit("take", self.indices, first, dim=0)


def _needs_order(b: ImportBuilder, weight: SSAValue, mode: int, padding: int) -> bool:
    """Whether eager takes the kernel that goes from one offset to the next; others look at how many bags began."""
    return mode != _MAX and padding < 0 and b.dtype(weight) in (f32, *HALF)


def _check_offsets(b: ImportBuilder, indices: SSAValue, offsets: SSAValue, count: Size, *, ordered: bool) -> None:
    """Bags start at the first index, and none of them outside of the indices."""
    (length,), (given,) = b.shape(indices), b.shape(offsets)
    if given == 0:
        return
    offsets = b.to(offsets, i64)
    first = b.emit("slice", offsets, starts=(0,), shape=(1,), steps=(1,))
    check_that(b, "place", "the first offset is not 0", b.emit("ne", first, b.number(0, i64)))
    below = b.emit("lt", offsets, b.number(0, i64))
    beyond = b.emit("gt", offsets, b.number(length, i64))
    check_that(b, "place", f"an offset is out of range for {length} indices", b.emit("logical_or", below, beyond))
    if ordered and given != 1:
        before = b.emit("slice", offsets, starts=(0,), shape=(given - 1,), steps=(1,))
        after = b.emit("slice", offsets, starts=(1,), shape=(given - 1,), steps=(1,))
        check_that(b, "place", "an offset is less than the one before", b.emit("lt", after, before))


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    b: ImportBuilder,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    scale_by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: SSAValue | None = None,
    include_last_offset: bool = False,
    padding: int = -1,
) -> tuple[SSAValue, ...]:
    if per_sample_weights is not None and b.dtype(per_sample_weights) != b.dtype(weight):
        raise UnsupportedError("weights of another type than the table, which torch refuses")
    bags = Bags.of(b, indices, offsets, b.result.shape[0], padding)
    check_places(b, indices, 0, b.shape(weight)[0])
    _check_offsets(b, indices, offsets, bags.count, ordered=_needs_order(b, weight, mode, padding))
    rows = b.wide(b.emit("take", weight, bags.indices, dim=0))
    kept = bags.kept(b.results[1:])
    if per_sample_weights is not None:
        rows = b.emit("mul", rows, b.unsqueeze(b.to(per_sample_weights, b.dtype(rows)), 1))
    if mode == _MAX:
        out, kept[2] = bags.maxima(rows)
    else:
        out = bags.sums(bags.counted(rows))
    if mode == _MEAN:
        dtype = b.dtype(rows)
        out = b.emit("div", out, b.emit("maximum", bags.sizes(dtype), b.number(1, dtype)))
    return out, *kept


@aten("_embedding_bag_backward")
def embedding_bag_backward(
    b: ImportBuilder,
    grad: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    _bag: Any,
    _sizes: Any,
    maxima: SSAValue,
    rows: Size,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: SSAValue | None,
    padding: int = -1,
) -> SSAValue:
    if sparse:
        raise UnsupportedError("a sparse gradient")
    count, width = b.shape(grad)
    bags = Bags.of(b, indices, offsets, count, padding)
    wide = b.wide(grad)
    dtype = b.dtype(wide)
    target = b.zeros(Tensor(dtype, (rows, width)))
    if mode == _MAX:
        wide = b.emit("where", b.emit("eq", bags.sizes(dtype), b.number(0, dtype)), b.number(0, dtype), wide)
        return b.emit("scatter", target, maxima, wide, dim=0, kind="add")
    if mode == _MEAN:
        wide = b.emit("div", wide, b.emit("maximum", bags.sizes(dtype), b.number(1, dtype)))
    share = bags.spread(wide)
    if per_sample_weights is not None:
        share = b.emit("mul", share, b.unsqueeze(b.to(per_sample_weights, dtype), 1))
    if scale_by_frequency:
        ones = b.expand(b.number(1, dtype), b.shape(indices))
        none = b.zeros(Tensor(dtype, (rows,)))
        often = b.emit("index_put", none, bags.indices, ones, dims=(0,), position=0, accumulate=True)
        share = b.emit("div", share, b.unsqueeze(b.emit("take", often, bags.indices, dim=0), 1))
    share = bags.counted(share)
    return b.emit("index_put", target, bags.indices, share, dims=(0,), position=0, accumulate=True)


@aten("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    b: ImportBuilder,
    grad: SSAValue,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    _bag: Any,
    mode: int,
    padding: int = -1,
) -> SSAValue:
    bags = Bags.of(b, indices, offsets, b.shape(grad)[0], padding)
    rows = b.wide(b.emit("take", weight, bags.indices, dim=0))
    products = b.emit("mul", rows, bags.spread(b.to(grad, b.dtype(rows))))
    return bags.counted(b.emit("sum", products, dims=(1,), keep=False))
