"""Let kernels write attention's gradients as their operands lie: the matmuls of projections read them as rows.

Heads lie side by side in memory where one matmul makes them all. Gradients that come head by head take a copy each for
a library's matmul, and rows that are gathered for any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp
from weft.ops.layouts import StridedLayout, contiguous, order_of, ordered, same_places
from weft.ops.matmul.attention_gradients import AttentionGradients
from weft.passes.grouping.build_groups import LIES, ValueLayouts


@dataclass(frozen=True)
class LayOutGradients(ModulePass):
    """Say before grouping how the gradients of attention are to lie: views of them depend on it.

    %q (strides 600, 8, 24, 1): tensor<2x3x25x8>          %dq, .. = graph.attention_gradients .. %q ..
    %dq, .. = graph.attention_gradients .. %q ..    →         {weft.lies = [[600, 8, 24, 1], ..]}
    %r = reshape (permute %dq), a copy                    %r = reshape (permute %dq), a view
    """

    name: ClassVar[str] = "lay_out_gradients"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            found = [each for each in function.block.ops if isinstance(each, AttentionGradients)]
            layouts = ValueLayouts(function) if found else None
            for each in found:
                assert layouts is not None
                strides = [_strides_like(value, layouts.of(value)) for value in each.operands[1:4]]
                if any(strides):
                    each.attributes[LIES] = to_attribute(tuple(strides))


def _strides_like(operand: SSAValue, layout: StridedLayout | None) -> tuple[Size, ...] | None:
    """The strides of a dense tensor in an operand's order; None where that is row-major, or there is none."""
    tensor = tensor_of(operand.type)
    order = order_of(tensor.shape, layout)
    dense = None if order is None else ordered(tensor.shape, order)
    if dense is None or same_places(tensor.shape, dense, contiguous(tensor)):
        return None
    return dense.strides
