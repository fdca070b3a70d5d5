"""Let a library take the ops that it does better than a generated kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from weft.ir.types import f32, f64, tensor_of
from weft.ops.graph import FuncOp
from weft.passes.build_groups import CLAIM


@dataclass(frozen=True)
class ClaimLibraries(ModulePass):
    """%y = graph.dot %a, %b   →   %y = graph.dot %a, %b {weft.claim = "blas"}"""

    name: ClassVar[str] = "claim_libraries"

    enabled: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not self.enabled:
            return
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for candidate in function.block.ops:
                    if candidate.name == "graph.dot" and tensor_of(candidate.results[0].type).dtype in (f32, f64):
                        candidate.attributes[CLAIM] = StringAttr("blas")
