"""Let windows widen what they read: a copy in f32 takes twice the memory, and a pass over all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import Reduction
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.build_groups import CLAIM, INLINED


@dataclass(frozen=True)
class WidenInWindows(ModulePass):
    """A cast to a wider float that windows alone read is done by each of them, for every element that it reads.

    %w = graph.cast %x : bf16 → f32             %w = graph.cast %x {weft.inlined}
    %s = graph.sum_pool %w                 →    %s = graph.sum_pool %w
    """

    name: ClassVar[str] = "widen_in_windows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for each in filter(_widens_for_windows, function.block.ops):
                    each.attributes[INLINED] = UnitAttr()


def _widens_for_windows(op: Operation) -> bool:
    if not isinstance(op, Cast) or CLAIM in op.attributes or not op.results[0].uses:
        return False
    narrow, wide = (tensor_of(value.type).dtype for value in (op.operands[0], op.results[0]))
    if not (narrow.is_float and wide.is_float and narrow.bits < wide.bits):
        return False
    return all(_is_window(use.operation) for use in op.results[0].uses)


def _is_window(op: Operation) -> bool:
    return isinstance(op, Reduction) and not isinstance(op, DimensionReduction) and CLAIM not in op.attributes
