"""Attention over sequences of different lengths that lie one after the other, as torch gives it to its library.

    _flash_attention_forward(q, k, v, ends, ends, …)      →      graph.attention q, k, v, mask, what tiles see

All of them are one sequence, in which the keys that a row sees have a first and a last one: those of its own. Both grow
with the row, so that the first and the last row of a tile tell what all of its rows see.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.attention import Many, attention_scale, heads_like
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, ceildiv
from weft.ir.types import i32
from weft.ops.matmul.attention import SEEN_ROWS


@aten("_flash_attention_forward")
def packed_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    ends_of_queries: SSAValue | None,
    ends_of_keys: SSAValue | None,
    longest_query: Size,
    longest_key: Size,
    dropout: float,
    causal: bool,
    debug: bool = False,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **others: Any,
) -> Many:
    if ends_of_queries is None or ends_of_keys is None:
        raise UnsupportedError("packed attention without the ends of its sequences")
    if dropout or any(option is not None for option in others.values()):
        raise UnsupportedError("attention with dropout, slopes, pages or lengths")
    ahead = 0 if causal else window_size_right
    behind, ahead = (None if width is None or width < 0 else width for width in (window_size_left, ahead))
    query, key, value = (b.unsqueeze(b.transpose(x, (1, 0, 2)), 0) for x in (query, key, value))
    rows, keys = b.shape(query)[2], b.shape(key)[2]
    sight = _Sight.of(b, rows, ends_of_queries, ends_of_keys, behind, ahead)
    # Where queries and keys lie side by side, that rows see nothing ahead of them needs no number in memory.
    diagonal = ahead == 0 and ends_of_queries is ends_of_keys
    operands = [query, heads_like(b, key, query), heads_like(b, value, query)]
    operands += [sight.mask(rows, keys, diagonal=diagonal), *sight.of_tiles(rows)]
    params: dict[str, Any] = {"causal": diagonal, "scale": attention_scale(b, query, scale)}
    if b.is_used(1):
        out, sums = b.emit("attention_with_lse", *operands, **params)
        kept = b.view(sums, b.shape(sums)[1:])
    else:
        out, kept = b.emit("attention", *operands, **params), None
    states = [b.zeros(state) if state and b.is_used(2 + place) else None for place, state in enumerate(b.results[2:])]
    return b.transpose(b.view(out, b.shape(out)[1:]), (1, 0, 2)), kept, *states


@aten("torch_attn._varlen_attn")
def attention_of_varying_lengths(b: ImportBuilder, *args: Any, **kwargs: Any) -> Many:
    """The same as `torch.nn.attention.varlen` calls it; what it may be told grows from one torch to the next."""
    operator: Any = torch.ops.torch_attn._varlen_attn.default
    given = dict(zip((argument.name for argument in operator._schema.arguments), args, strict=False)) | kwargs
    left, right = given.get("window_size") or (-1, -1)
    return packed_attention(
        b,
        given["query"],
        given["key"],
        given["value"],
        given["cu_seq_q"],
        given["cu_seq_k"],
        given["max_q"],
        given["max_k"],
        0.0,
        given.get("is_causal", False),
        scale=given.get("scale"),
        window_size_left=left,
        window_size_right=right,
        seqused_k=given.get("seqused_k"),
        block_table=given.get("block_table"),
    )


@dataclass(frozen=True)
class _Sight:
    """Which keys rows see: of each row the first one, and the one after the last, in whole tiles of rows.

    Rows beyond the last one see what it sees.
    """

    b: ImportBuilder
    lower: SSAValue
    upper: SSAValue

    @classmethod
    def of(
        cls, b: ImportBuilder, rows: Size, queries: SSAValue, keys: SSAValue, behind: int | None, ahead: int | None
    ) -> _Sight:
        """That of so many rows, given where the sequences of queries and those of keys begin, and where the last ends.

        A row sees `behind` keys at most before the one at its own place, counted from its sequence's end, and `ahead`
        after it.
        """
        count = ceildiv(rows, SEEN_ROWS) * SEEN_ROWS
        row = b.emit("minimum", b.view(b.iota_of(count, i32), (count, 1)), b.number(rows - 1, i32))
        ends_of_queries, ends_of_keys = (b.view(b.to(ends, i32), (1, *b.shape(ends))) for ends in (queries, keys))
        begun = b.emit("le", ends_of_queries, row)

        def end_of_own(ends: SSAValue) -> SSAValue:
            *_, last = b.shape(ends)
            end = b.emit("slice", ends, starts=(0, last - 1), shape=(1, 1), steps=(1, 1))
            return b.emit("min", b.emit("where", begun, end, ends), dims=(1,), keep=True)

        first = b.emit("max", b.emit("where", begun, ends_of_keys, b.number(0, i32)), dims=(1,), keep=True)
        lower, upper = first, end_of_own(ends_of_keys)
        place = row
        if queries is not keys:
            place = b.emit("add", row, b.emit("sub", upper, end_of_own(ends_of_queries)))
        if behind is not None:
            lower = b.emit("maximum", lower, b.emit("sub", place, b.number(behind, i32)))
        if ahead is not None:
            upper = b.emit("minimum", upper, b.emit("add", place, b.number(ahead + 1, i32)))
            upper = b.emit("maximum", upper, first)
        return cls(b, lower, upper)

    def mask(self, rows: Size, keys: Size, *, diagonal: bool) -> SSAValue:
        """Whether each row sees each key; what is to come is not asked of, if rows see up to the `diagonal` anyway."""
        b = self.b
        key = b.view(b.iota_of(keys, i32), (1, keys))
        lower, upper = (self._rows(bound, 0, 1, rows) for bound in (self.lower, self.upper))
        behind = b.emit("ge", key, lower)
        return behind if diagonal else b.emit("bitwise_and", behind, b.emit("lt", key, upper))

    def of_tiles(self, rows: Size) -> list[SSAValue]:
        """Of each tile, from which key to which one any row sees keys, and from which to which all rows see all."""
        count = ceildiv(rows, SEEN_ROWS)
        of_first, of_last = (
            [self._rows(bound, first, SEEN_ROWS, count) for bound in (self.lower, self.upper)]
            for first in (0, SEEN_ROWS - 1)
        )
        return [of_first[0], of_last[1], of_last[0], of_first[1]]

    def _rows(self, bound: SSAValue, first: int, step: int, count: Size) -> SSAValue:
        return self.b.emit("slice", bound, starts=(first, 0), shape=(count, 1), steps=(step, 1))
