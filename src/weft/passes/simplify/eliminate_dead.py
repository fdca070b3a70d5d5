"""Remove ops whose results nobody needs: dead code elimination (DCE)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp, functions_run
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp


@dataclass(frozen=True)
class EliminateDead(ModulePass):
    """%a = graph.exp %x ; graph.return %x   →   graph.return %x

    A call that Weft does not look into goes too, unless it has effects or draws random numbers.
    """

    name: ClassVar[str] = "eliminate_dead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            for candidate in reversed(list(function.block.ops)):
                if is_pure(candidate) and not any(result.uses for result in candidate.results):
                    candidate.detach()
                    candidate.erase()


def is_pure(op: Operation) -> bool:
    """Whether an op does nothing but make its results, the same ones whenever it runs."""
    known = _all_are_pure(type(op))
    if known is not None:
        return known
    if isinstance(op, ControlOp):
        blocks = [region.block for region in op.bodies] or [each.block for each in functions_run(op)]
        return all(is_pure(each) for block in blocks for each in block.ops if not isinstance(each, YieldOp | ReturnOp))
    if isinstance(op, CustomOp):
        return all(is_pure(each) for each in op.body.ops if not isinstance(each, YieldOp))
    return op.attributes.get("pure") != to_attribute(False)


@cache
def _all_are_pure(kind: type[Operation]) -> bool | None:
    """Whether all ops of a class are pure; None where it depends on the op."""
    if issubclass(kind, OpaqueOp | LaunchOp | ControlOp | CustomOp):
        return None
    return issubclass(kind, GroupOp) or (issubclass(kind, GraphOp) and not kind.EFFECTS)
