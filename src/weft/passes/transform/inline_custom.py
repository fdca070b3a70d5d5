"""Put the bodies of functions with rules of their own in their places: what is compiled has no use for rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from weft.ops.custom import CustomOp, inline_block
from weft.ops.graph import FuncOp, GraphBuilder


@dataclass(frozen=True)
class InlineCustom(ModulePass):
    """%y = graph.custom(%x) ({ f }, { its gradient }) {rules = ["vjp"]}   →   f"""

    name: ClassVar[str] = "inline_custom"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                inline_custom(function.block)


def inline_custom(block: Block) -> None:
    """Put bodies in the places of `graph.custom`, in regions too."""
    for op in list(block.ops):
        for region in op.regions:
            for inner in region.blocks:
                inline_custom(inner)
        if isinstance(op, CustomOp):
            found = inline_block(GraphBuilder(block, before=op), op.body, list(op.operands))
            for old, new in zip(op.results, found, strict=True):
                old.replace_all_uses_with(new)
            op.detach()
            op.erase()
