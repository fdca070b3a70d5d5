"""Compute equal things once: common subexpression elimination (CSE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ir.attributes import identity_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, OpaqueOp
from weft.passes.simplify.eliminate_dead import is_pure


@dataclass(frozen=True)
class EliminateCommon(ModulePass):
    """%a = graph.exp %x ; %b = graph.exp %x ; f(%a, %b)   →   %a = graph.exp %x ; f(%a, %a)"""

    name: ClassVar[str] = "eliminate_common"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            seen: dict[object, Operation] = {}
            for candidate in list(function.block.ops):
                if not isinstance(candidate, GraphOp | OpaqueOp) or not is_pure(candidate):
                    continue
                attributes = candidate.attributes
                described = tuple((name, identity_of(attributes[name])) for name in sorted(attributes))
                key = (candidate.name, tuple(candidate.operands), described)
                first = seen.setdefault(key, candidate)
                if first is not candidate:
                    for old, new in zip(candidate.results, first.results, strict=True):
                        old.replace_all_uses_with(new)
                    candidate.detach()
                    candidate.erase()
