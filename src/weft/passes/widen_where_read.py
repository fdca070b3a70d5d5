"""Widen what is read from memory in the kernels that read it, instead of once in a kernel of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import GraphOp, viewed
from weft.ops.cast import Cast
from weft.ops.graph import FuncOp, OpaqueOp
from weft.passes.build_groups import CLAIM, WIDENS


@dataclass(frozen=True)
class WidenWhereRead(ModulePass):
    """%w = graph.cast %weight : bf16 → f32      →   %w = graph.cast %weight {weft.widens}

    A cast that loses nothing, of what lies in memory, is a part of reading it: who needs the value reads the narrow
    one. On a GPU that costs an instruction, and saves a launch and half the bytes.
    """

    name: ClassVar[str] = "widen_where_read"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for cast in function.block.ops:
                    if isinstance(cast, Cast) and _widens(cast):
                        cast.attributes[WIDENS] = UnitAttr()


def _widens(cast: Cast) -> bool:
    source, target = tensor_of(cast.operands[0].type).dtype, tensor_of(cast.results[0].type).dtype
    if not (source.is_float and target.is_float and source.bits < target.bits == 32):
        return False
    users = [use.operation for use in cast.results[0].uses]
    computed = all(isinstance(user, GraphOp) and CLAIM not in user.attributes for user in users)
    return computed and _is_memory(viewed(cast.operands[0]))


def _is_memory(value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) or (isinstance(value, OpResult) and isinstance(value.op, OpaqueOp))
