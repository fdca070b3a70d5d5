"""Remove ops whose results nobody needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, GroupOp


@dataclass(frozen=True)
class EliminateDead(ModulePass):
    """%a = graph.exp %x ; graph.return %x   →   graph.return %x"""

    name: ClassVar[str] = "eliminate_dead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            for candidate in reversed(list(function.block.ops)):
                if isinstance(candidate, GraphOp | GroupOp) and not any(r.uses for r in candidate.results):
                    candidate.detach()
                    candidate.erase()
