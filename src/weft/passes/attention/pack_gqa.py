"""Let single queries of heads that share keys be rows of one head: keys are read once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.attention import Attention
from weft.passes.simplify.constant_values import made_by


@dataclass(frozen=True)
class PackGqa(ModulePass):
    """%k = graph.reshape (graph.broadcast %keys)      8 x 8 x 1 x 8192 x 128, repeated 4 times: 8 x 32 x 8192 x 128
    %y = graph.attention %q, %k, %v               8 x 32 x 1 x 128
                                             →
    %y = graph.attention %q, %keys, %values       8 x 8 x 4 x 128
    """

    name: ClassVar[str] = "pack_gqa"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            for each in list(function.block.ops):
                if isinstance(each, Attention) and not each.params["causal"] and not each.seen:
                    b = GraphBuilder(function.block, each.location, before=each)
                    result = _as_rows(b, each)
                    if result is not None:
                        each.results[0].replace_all_uses_with(result)
                        each.detach()
                        each.erase()


def _as_rows(b: GraphBuilder, op: Attention) -> SSAValue | None:
    q, k, v = op.operands[:3]
    *lead, rows, width = tensor_of(q.type).shape
    keys, values = _shared(k), _shared(v)
    if rows != 1 or keys is None or values is None or keys.sharing != values.sharing or keys.lead != values.lead:
        return None
    q = b.reshape(q, shape=(*keys.lead, keys.sharing, width))
    k, v = (b.reshape(x, shape=(*keys.lead, *b.tensor(x).shape[-2:])) for x in (keys.source, values.source))
    others = [_of_rows(b, each, lead, keys) for each in (*op.masks, *op.sinks)]
    result = b.attention(q, k, v, *others, **op.params)
    return b.reshape(result, shape=tensor_of(op.results[0].type).shape)


@dataclass(frozen=True)
class _Shared:
    """Keys or values of heads, the shape of these, and how many heads of queries share one."""

    source: SSAValue
    lead: tuple[Size, ...]
    sharing: Size
    merged: bool
    """Whether the heads of queries are one dimension."""


def _shared(value: SSAValue) -> _Shared | None:
    view = made_by(value, "graph.reshape")
    spread = made_by(value if view is None else view.operands[0], "graph.broadcast")
    if spread is None:
        return None
    source = spread.operands[0]
    *lead, sharing, count, width = tensor_of(spread.results[0].type).shape
    if tensor_of(source.type).shape != (*lead, 1, count, width) or sharing == 1:
        return None
    if view is not None and (not lead or tensor_of(value.type).shape != (*lead[:-1], lead[-1] * sharing, count, width)):
        return None
    return _Shared(source, tuple(lead), sharing, view is not None)


def _of_rows(b: GraphBuilder, mask: SSAValue, lead: list[Size], keys: _Shared) -> SSAValue:
    """A mask of single queries, or their sinks, for rows."""
    while (view := made_by(mask, "graph.broadcast")) is not None:
        mask = view.operands[0]
    shape = tensor_of(mask.type).shape
    *outer, heads, _, columns = (*(1,) * (len(lead) + 2 - len(shape)), *shape)
    if keys.merged:
        own = (*outer, 1, 1, columns) if heads == 1 else (*outer, keys.lead[-1], keys.sharing, columns)
    else:
        own = (*outer, heads, columns)
    return mask if own == shape else b.reshape(mask, shape=own)
