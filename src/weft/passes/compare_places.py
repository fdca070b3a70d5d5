"""Write one element a line into a constant by comparing places: unlike a scatter, that joins the kernel that reads it.

The gradient of a loss that picks an element of each row is such: all zeros but for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult
from xdsl.passes import ModulePass

from weft.ir.types import i64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.rules import size_value
from weft.ops.scatter import ScatterElements
from weft.passes.build_groups import is_free


@dataclass(frozen=True)
class ComparePlaces(ModulePass):
    """%z = graph.full 0 (8192 x 50257)                           %j = graph.iota (1 x 50257)
    %y = graph.scatter %z, %i, %u dim=1 (8192 x 1)       →        %y = graph.where (%j == %i), %u, %z
    """

    name: ClassVar[str] = "compare_places"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for scatter in list(function.block.ops):
                    if isinstance(scatter, ScatterElements) and _is_one_a_line(scatter):
                        _rewrite(function, scatter)


def _is_one_a_line(scatter: ScatterElements) -> bool:
    x, index, updates = (tensor_of(operand.type) for operand in scatter.operands)
    source = scatter.operands[0]
    line = tuple(1 if d == scatter.params["dim"] else size for d, size in enumerate(x.shape))
    constant = isinstance(source, OpResult) and is_free(source.op) and not source.op.operands
    return constant and scatter.params["kind"] == "assign" and index.shape == updates.shape == line


def _rewrite(function: FuncOp, scatter: ScatterElements) -> None:
    b = GraphBuilder(function.block, before=scatter, location=scatter.location)
    x, index, updates = scatter.operands
    dim: int = scatter.params["dim"]
    size = tensor_of(x.type).shape[dim]
    dtype = tensor_of(index.type).dtype
    shape = tuple(size if d == dim else 1 for d in range(tensor_of(x.type).rank))
    places = b.iota(shape=shape, dim=dim, dtype=i64)
    index = index if dtype == i64 else b.cast(index, dtype=i64)
    zero, count = b.full(value=0, shape=(), dtype=i64), size_value(b, size, i64)
    # As in a scatter: counted from the end where it is negative, and kept inside.
    index = b.where(b.lt(index, zero), b.add(index, count), index)
    index = b.maximum(b.minimum(index, size_value(b, size - 1, i64)), zero)
    scatter.results[0].replace_all_uses_with(b.where(b.eq(places, index), updates, x))
    scatter.detach()
    scatter.erase()
