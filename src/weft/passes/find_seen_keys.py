"""Look at masks in memory before attention does: which keys the rows of a tile see, so that others are not visited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import bf16, boolean, f16, i32, i64, tensor_of
from weft.ops.attention import SEEN_ROWS, AnyAttention
from weft.ops.base import viewed
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp

_LEAST_ROWS = 512


@dataclass(frozen=True)
class FindSeenKeys(ModulePass):
    """A mask that is the same for all heads is read once, to skip what it hides in all of them.

    %y = graph.attention %q, %k, %v, %mask    →    %seen = [least, greatest + 1, …] of keys where any, or all rows of a
                                                           tile of %mask are true
                                                   %y = graph.attention %q, %k, %v, %mask, %seen
    """

    name: ClassVar[str] = "find_seen_keys"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            known: dict[SSAValue, SSAValue] = {}
            for each in list(function.block.ops):
                if isinstance(each, AnyAttention) and len(each.operands) == 4 and _is_worth_it(each):
                    mask = each.masks[0]
                    b = GraphBuilder(function.block, each.location, before=each)
                    if mask not in known:
                        known[mask] = _seen(b, mask)
                    made = type(each).make(*each.operands, known[mask], location=each.location, **each.params)
                    b.insert(made)
                    for old, new in zip(each.results, made.results, strict=True):
                        old.replace_all_uses_with(new)
                    each.detach()
                    each.erase()


def _is_worth_it(op: AnyAttention) -> bool:
    mask, query = tensor_of(op.masks[0].type), tensor_of(op.operands[0].type)
    root = viewed(op.masks[0])
    in_memory = not isinstance(root, OpResult) or isinstance(root.op, OpaqueOp)
    if mask.dtype != boolean or query.dtype not in (bf16, f16) or not mask.is_static or not in_memory:
        return False
    *lead, rows, keys = mask.shape if mask.rank > 1 else (1, 1)
    if any(size != 1 for size in lead) or not isinstance(rows, int) or not isinstance(keys, int):
        return False
    whole = rows % SEEN_ROWS == 0 and rows >= _LEAST_ROWS and keys > 1
    return whole and (rows, keys) == (query.shape[-2], tensor_of(op.operands[1].type).shape[-2])


def _seen(b: GraphBuilder, mask: SSAValue) -> SSAValue:
    """Of each tile of rows: the first key that any sees, the one after the last, and the same of those that all see.

    The latter are none unless they are all that lie between.
    """
    *_, rows, keys = b.tensor(mask).shape
    tiles: SSAValue = b.reshape(mask, shape=(rows // SEEN_ROWS, SEEN_ROWS, keys))
    place = b.iota(shape=(1, keys), dim=1, dtype=i64)
    zero, one, end = (b.full(value=number, shape=(), dtype=i64) for number in (0, 1, keys))

    def bounds(holds: SSAValue) -> tuple[SSAValue, SSAValue]:
        first = b.min(b.where(holds, place, end), dims=(1,), keep=True)
        return first, b.max(b.where(holds, b.add(place, one), zero), dims=(1,), keep=True)

    holding = b.sum(b.cast(tiles, dtype=i32), dims=(1,), keep=False)  # one look at the mask is enough for both
    none, all_ = (b.full(value=number, shape=(), dtype=i32) for number in (0, SEEN_ROWS))
    some, every = b.ne(holding, none), b.eq(holding, all_)
    (lower, upper), (start, stop) = bounds(some), bounds(every)
    count = b.sum(b.cast(every, dtype=i64), dims=(1,), keep=True)
    single = b.eq(count, b.sub(stop, start))
    column = b.iota(shape=(1, 4), dim=1, dtype=i64)
    found = b.where(single, stop, zero)
    for number, value in ((2, b.where(single, start, zero)), (1, upper), (0, lower)):
        found = b.where(b.eq(column, b.full(value=number, shape=(), dtype=i64)), value, found)
    return found
