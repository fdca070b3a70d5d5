"""The gradients of attention from its operands: of all rows at once, or of blocks of rows, one after another.

All rows at once take the square of the sequence in memory, for scores, weights and their gradients. Blocks take a part
of it that grows with the number of keys alone, and so do their own derivatives: a loop's gradient computes a turn
again, and what turns only add up is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from weft.ir.types import boolean, i64
from weft.ops.control import loop
from weft.ops.graph import GraphBuilder
from weft.ops.matmul.dot import transposed
from weft.ops.rules import Values, size_value, zeros

BY_BLOCKS_FROM = 1 << 18
"""Scores of a head from which on they are computed by blocks of rows."""
MOST_ROWS, _FEWEST_ROWS = 128, 16


@dataclass(frozen=True)
class ScoreRule:
    """What becomes of products of queries and keys before softmax."""

    causal: bool
    scale: float
    softcap: float


@dataclass(frozen=True)
class RowGradients:
    """The gradients of operands, of scores after what masks do to them, and of sinks."""

    q: SSAValue
    k: SSAValue
    v: SSAValue
    scores: SSAValue
    sink: SSAValue | None


def row_gradients(
    b: GraphBuilder,
    g: SSAValue,
    on_lse: Values,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    masks: Values,
    rule: ScoreRule,
    sink: SSAValue | None = None,
    first: SSAValue | None = None,
) -> RowGradients:
    """The gradients that rows contribute, given that of their results and of the logarithms of their sums.

    `first` is the number of the first row, by default 0.
    """
    capped, shares, sunk = shares_of(b, q, k, masks, rule, sink, first)
    on_shares = b.dot(g, transposed(b, v))
    last = (b.tensor(shares).rank - 1,)
    mean = b.sum(b.mul(on_shares, shares), dims=last, keep=True)
    for each in on_lse:
        mean = b.sub(mean, b.reshape(each, shape=(*b.tensor(each).shape, 1)))
    on_scores = b.mul(shares, b.sub(on_shares, mean))
    scaled = b.mul(on_scores, b.full_like(on_scores, rule.scale))
    if rule.softcap:  # the derivative of a tanh is 1 - tanh²
        share = b.div(capped, b.full_like(capped, rule.softcap))
        scaled = b.mul(scaled, b.sub(b.full_like(share, 1), b.mul(share, share)))
    return RowGradients(
        b.dot(scaled, k),
        b.dot(transposed(b, scaled), q),
        b.dot(transposed(b, shares), g),
        on_scores,
        None if sunk is None else b.neg(b.mul(sunk, mean)),
    )


def rows_at_once(b: GraphBuilder, q: SSAValue, k: SSAValue, masks: Values) -> int:
    """How many rows make a block, 0 where all are taken at once: they are few, or their number is not known, or a
    gradient of the mask is as large as the scores."""
    rows, keys = b.tensor(q).shape[-2], b.tensor(k).shape[-2]
    if not isinstance(rows, int) or not isinstance(keys, int) or rows * keys < BY_BLOCKS_FROM:
        return 0
    if any(b.tensor(mask).dtype != boolean for mask in masks):
        return 0
    return next((count for count in range(min(MOST_ROWS, rows), _FEWEST_ROWS - 1, -1) if rows % count == 0), 0)


def gradients_by_blocks(
    b: GraphBuilder,
    g: SSAValue,
    on_lse: Values,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    masks: Values,
    rule: ScoreRule,
    rows: int,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The gradients of q, k and v, `rows` rows at a time: those of keys and values add up from block to block."""

    def part(b: GraphBuilder, first: SSAValue, own: Values, masks: Values) -> tuple[list[SSAValue], list[SSAValue]]:
        g, q, *on_lse = own
        found = row_gradients(b, g, on_lse, q, k, v, masks, rule, None, first)
        return [found.k, found.v], [found.q]

    (on_k, on_v), (on_q,) = by_row_blocks(b, part, [g, q, *on_lse], masks, [k, v], rows)
    return on_q, on_k, on_v


RowPart = Callable[[GraphBuilder, SSAValue, Values, Values], tuple[Sequence[SSAValue], Sequence[SSAValue]]]
"""Of the first row's number, a block's rows and its masks: what all blocks add up to, and what rows have of their
own."""


def by_row_blocks(
    b: GraphBuilder, part: RowPart, own: Values, masks: Values, summed: Values, rows: int
) -> tuple[Sequence[SSAValue], list[SSAValue]]:
    """What blocks of `rows` rows add up to, tensors like those of `summed`, and what they make of rows, side by side.

    Of their `own`, rows have [..., L, E] or, numbers, [..., L]; the first are such as have a width.
    """
    rank, count = b.tensor(own[0]).rank, b.tensor(own[0]).shape[-2]
    sliced = [mask for mask in masks if b.tensor(mask).rank > 1 and b.tensor(mask).shape[-2] == count]
    are_wide = [b.tensor(each).rank == rank for each in own]

    def turn(
        b: GraphBuilder, index: SSAValue, sums: Sequence[SSAValue], blocks: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        first = b.mul(index, size_value(b, rows, i64))
        added, made = part(b, first, blocks[: len(own)], blocks[len(own) :] or masks)
        return [b.add(total, each) for total, each in zip(sums, added, strict=True)], [*made]

    def cut(x: SSAValue, *, is_wide: bool) -> SSAValue:
        if is_wide:
            return _blocks(b, x, rows)
        return _without_last(b, _blocks(b, b.reshape(x, shape=(*b.tensor(x).shape, 1)), rows))

    scanned = [cut(each, is_wide=is_wide) for each, is_wide in zip(own, are_wide, strict=True)]
    scanned += [_blocks(b, mask, rows) for mask in sliced]
    sums, made = loop(b, turn, [zeros(b, each) for each in summed], scanned, trip_count=count // rows)
    return sums, [_rows(b, each) for each in made]


def _blocks(b: GraphBuilder, x: SSAValue, rows: int) -> SSAValue:
    """[..., L, E] as [L / rows, ..., rows, E]."""
    *lead, length, width = b.tensor(x).shape
    cut = b.reshape(x, shape=(*lead, length // rows, rows, width))
    place = len(lead)
    return b.permute(cut, dims=(place, *range(place), place + 1, place + 2))


def _rows(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """[L / rows, ..., rows, E] as [..., L, E]."""
    blocks, *lead, rows, width = b.tensor(x).shape
    place = len(lead)
    joined = b.permute(x, dims=(*range(1, place + 1), 0, place + 1, place + 2))
    return b.reshape(joined, shape=(*lead, blocks * rows, width))


def _without_last(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.reshape(x, shape=b.tensor(x).shape[:-1])


def shares_of(
    b: GraphBuilder,
    q: SSAValue,
    k: SSAValue,
    masks: Values,
    rule: ScoreRule,
    sink: SSAValue | None,
    first: SSAValue | None,
) -> tuple[SSAValue, SSAValue, SSAValue | None]:
    """The scores before they are masked, the weights of values: their softmax, zero in a row without any key, and what
    sinks take of it."""
    scores = b.dot(q, transposed(b, k))
    scores = b.mul(scores, b.full_like(scores, rule.scale))
    if rule.softcap:
        cap = b.full_like(scores, rule.softcap)
        scores = b.mul(b.tanh(b.div(scores, cap)), cap)
    unmasked = scores
    nothing = b.full_like(scores, float("-inf"))
    for mask in masks:
        if b.tensor(mask).dtype == boolean:
            scores = b.where(mask, scores, nothing)
        else:
            wide = b.tensor(scores).dtype
            scores = b.add(scores, mask if b.tensor(mask).dtype == wide else b.cast(mask, dtype=wide))
    *_, rows, columns = b.tensor(scores).shape
    if rule.causal:
        row = b.iota(shape=(rows, 1), dim=0, dtype=i64)
        row = row if first is None else b.add(row, first)
        scores = b.where(b.ge(row, b.iota(shape=(1, columns), dim=1, dtype=i64)), scores, nothing)
    last = (b.tensor(scores).rank - 1,)
    greatest = b.max(scores, dims=last, keep=True)
    zero, one = b.full_like(scores, 0), b.full_like(scores, 1)
    if sink is not None:
        sink = b.cast(sink, dtype=b.tensor(scores).dtype)
        greatest = b.maximum(greatest, sink)
    base = b.where(b.eq(greatest, nothing), zero, greatest)
    powers = b.exp(b.sub(scores, base))
    total, beside = b.sum(powers, dims=last, keep=True), None
    if sink is not None:
        beside = b.exp(b.sub(sink, base))
        total = b.add(total, beside)
    divisor = b.where(b.eq(total, zero), one, total)
    return unmasked, b.div(powers, divisor), None if beside is None else b.div(beside, divisor)
