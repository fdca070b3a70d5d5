"""Remove what does nothing and join what can be one: a table of rules by op, applied in one walk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, GraphBuilder


@dataclass(frozen=True)
class Simplify(ModulePass):
    """%a = graph.reshape(graph.reshape(%x)) ; %b = graph.mul %a, 1.0   →   %b = graph.reshape %x"""

    name: ClassVar[str] = "simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for candidate in list(function.block.ops):
                    rule = RULES.get(candidate.name)
                    if rule is None or not isinstance(candidate, GraphOp):
                        continue
                    b = GraphBuilder(function.block, candidate.location, before=candidate)
                    replacement = rule(b, candidate)
                    if replacement is not None:
                        candidate.results[0].replace_all_uses_with(replacement)
                        candidate.detach()
                        candidate.erase()


Rule = Callable[[GraphBuilder, GraphOp], SSAValue | None]


def _same_type(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """A reshape, broadcast or cast to what the operand already is."""
    return op.operands[0] if op.operands[0].type == op.results[0].type else None


def _made_by(value: SSAValue, name: str) -> GraphOp | None:
    return value.op if isinstance(value, OpResult) and value.op.name == name and isinstance(value.op, GraphOp) else None


def _reshape(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    if (same := _same_type(b, op)) is not None:
        return same
    inner = _made_by(op.operands[0], "graph.reshape")
    return None if inner is None else b.reshape(inner.operands[0], **op.params)


def _permute(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    dims = op.params["dims"]
    if dims == tuple(range(len(dims))):
        return op.operands[0]
    inner = _made_by(op.operands[0], "graph.permute")
    if inner is None:
        return None
    joined = tuple(inner.params["dims"][d] for d in dims)
    return inner.operands[0] if joined == tuple(range(len(dims))) else b.permute(inner.operands[0], dims=joined)


def _slice(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    whole = op.operands[0].type == op.results[0].type and all(step == 1 for step in op.params["steps"])
    return op.operands[0] if whole else None


def constant_of(value: SSAValue) -> float | int | bool | None:
    """The number that a value is filled with, if that is known."""
    while (view := _made_by(value, "graph.broadcast") or _made_by(value, "graph.reshape")) is not None:
        value = view.operands[0]
    full = _made_by(value, "graph.full")
    return None if full is None else full.params["value"]


def _neutral(right: float, *, commutes: bool) -> Rule:
    """`x + 0`, `x * 1` and the like, where the result has the operand's type."""

    def rule(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
        a, c = op.operands
        # -0.0 + 0.0 is 0.0: adding zero to a float is left alone.
        if right == 0 and tensor_of(op.results[0].type).dtype.is_float and op.name == "graph.add":
            return None
        if constant_of(c) == right and a.type == op.results[0].type:
            return a
        if commutes and constant_of(a) == right and c.type == op.results[0].type:
            return c
        return None

    return rule


RULES: dict[str, Rule] = {
    "graph.reshape": _reshape,
    "graph.permute": _permute,
    "graph.broadcast": _same_type,
    "graph.cast": _same_type,
    "graph.slice": _slice,
    "graph.add": _neutral(0, commutes=True),
    "graph.sub": _neutral(0, commutes=False),
    "graph.mul": _neutral(1, commutes=True),
    "graph.div": _neutral(1, commutes=False),
}
