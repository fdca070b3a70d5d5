"""Look at masks in memory before attention does: which keys the rows of a tile see, so that others are not visited."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import bf16, boolean, f16, i32, i64, tensor_of
from weft.ops.base import viewed
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.ops.matmul.attention import SEEN_ROWS, AnyAttention

_LEAST_ROWS, _KEYS = 512, 128
"""Of masks that are looked at, and of a block of keys."""
_EVERY = 1 << 16
"""More than the places of a block: what is summed up tells how many are seen, and how many as they are."""


@dataclass(frozen=True)
class FindBlockMasks(ModulePass):
    """A mask that is the same for all heads is read once, to skip what it hides in all of them.

    %y = graph.attention %q, %k, %v, %mask    →    %lower, %upper, … = of each tile of rows, the first block of keys
                                                           that any of them sees, the one after the last, …
                                                   %y = graph.attention %q, %k, %v, %mask, %lower, %upper, …
    """

    name: ClassVar[str] = "find_block_masks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            known: dict[SSAValue, list[SSAValue]] = {}
            for each in list(function.block.ops):
                if isinstance(each, AnyAttention) and each.masks and not each.seen and _is_worth_it(each):
                    mask = each.masks[0]
                    b = GraphBuilder(function.block, each.location, before=each)
                    if mask not in known:
                        known[mask] = _seen(b, mask)
                    operands = *each.operands[:4], *known[mask], *each.sinks
                    made = type(each).make(*operands, location=each.location, **each.params)
                    b.insert(made)
                    for old, new in zip(each.results, made.results, strict=True):
                        old.replace_all_uses_with(new)
                    each.detach()
                    each.erase()


def _is_worth_it(op: AnyAttention) -> bool:
    mask, query = tensor_of(op.masks[0].type), tensor_of(op.operands[0].type)
    root = viewed(op.masks[0])
    in_memory = not isinstance(root, OpResult) or isinstance(root.op, OpaqueOp)
    if query.dtype not in (bf16, f16) or not mask.is_static or not in_memory:
        return False
    *lead, rows, keys = mask.shape if mask.rank > 1 else (1, 1)
    if any(size != 1 for size in lead) or not isinstance(rows, int) or not isinstance(keys, int):
        return False
    whole = rows % SEEN_ROWS == 0 and rows >= _LEAST_ROWS and keys % _KEYS == 0
    return whole and (rows, keys) == (query.shape[-2], tensor_of(op.operands[1].type).shape[-2])


def _seen(b: GraphBuilder, mask: SSAValue) -> list[SSAValue]:
    """Of each tile of rows: what `Attention` wants to know, in whole blocks of keys.

    What is found second is found of what is behind the first, and so on: that makes one kernel of all.
    """
    *_, rows, keys = b.tensor(mask).shape
    blocks = keys // _KEYS
    tiles = b.reshape(mask, shape=(rows // SEEN_ROWS, SEEN_ROWS, blocks, _KEYS))
    held = b.sum(_marks(b, tiles), dims=(1, 3), keep=False)
    some = b.ne(held, b.full_like(held, 0))
    all_ = b.ge(held, b.full_like(held, _EVERY * SEEN_ROWS * _KEYS))
    place = b.iota(shape=(1, blocks), dim=1, dtype=i64)
    zero, one, last = (b.full(value=number, shape=(), dtype=i64) for number in (0, 1, blocks))

    def ends(holds: SSAValue) -> tuple[SSAValue, SSAValue]:
        first = b.min(b.where(holds, place, last), dims=(1,), keep=True)
        return first, b.max(b.where(holds, b.add(place, one), zero), dims=(1,), keep=True)

    begun = b.min(b.where(some, last, place), dims=(1,), keep=True)
    again, end = ends(b.bitwise_and(some, b.ge(place, begun)))
    apart = b.lt(again, last)
    lower, upper, prefix = b.where(apart, again, zero), b.where(apart, end, begun), b.where(apart, begun, zero)
    every = b.bitwise_and(all_, b.ge(place, lower))
    start, stop = ends(every)
    single = b.eq(b.sum(b.cast(every, dtype=i64), dims=(1,), keep=True), b.sub(stop, start))
    start, stop = b.where(single, start, zero), b.where(single, stop, zero)
    keys_of = b.full(value=_KEYS, shape=(), dtype=i64)
    return [b.mul(found, keys_of) for found in (lower, upper, start, stop, prefix)]


def _marks(b: GraphBuilder, mask: SSAValue) -> SSAValue:
    """1 where a key is seen, and `_EVERY` more where its score is left as it is."""
    mark, left, none = (b.full(value=number, shape=(), dtype=i32) for number in (1, _EVERY + 1, 0))
    if b.tensor(mask).dtype == boolean:
        return b.where(mask, left, none)
    seen = b.where(b.eq(mask, b.full_like(mask, 0)), left, mark)
    return b.where(b.eq(mask, b.full_like(mask, -math.inf)), none, seen)
