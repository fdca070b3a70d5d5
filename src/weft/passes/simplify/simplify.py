"""Remove what does nothing and join what can be one: tables of rules by op, applied in one walk.

A rule sees an op whose operands are simplified already and gives the value that replaces its result, or None. Rules
never change a result: not by a bit, with NaN, infinities and signed zeros counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.simplify import arithmetic_rules, view_rules

Rule: TypeAlias = Callable[[GraphBuilder, GraphOp], SSAValue | None]


@dataclass(frozen=True)
class Simplify(ModulePass):
    """%a = graph.reshape(graph.reshape(%x)) ; %b = graph.mul %a, 1.0   →   %b = graph.reshape %x"""

    name: ClassVar[str] = "simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for candidate in list(function.block.ops):
                    _simplify(function.block, candidate)


RULES: dict[str, Rule] = {**view_rules.RULES, **arithmetic_rules.RULES}


def _simplify(block: Block, op: Operation) -> None:
    """Apply the op's rule, then that of what replaced it, and so on."""
    while isinstance(op, GraphOp) and (rule := RULES.get(op.name)) is not None:
        replacement = rule(GraphBuilder(block, op.location, before=op), op)
        if replacement is None:
            return
        op.results[0].replace_all_uses_with(replacement)
        op.detach()
        op.erase()
        if not isinstance(replacement, OpResult):
            return
        op = replacement.op
