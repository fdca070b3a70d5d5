"""Rules for calls that a framework carries out (`graph.opaque`): whoever brings such calls states theirs here.

An op of the registry has its rules on its class. A call has only a name, by which transformations find its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.ir import Operation, SSAValue

from weft.ir.expr import Size
from weft.ops.graph import GraphBuilder, OpaqueOp


class CallRules(Protocol):
    """What transformations make of a call."""

    def vjp(
        self,
        b: GraphBuilder,
        op: OpaqueOp,
        grads: Sequence[SSAValue | None],
        operands: Sequence[SSAValue],
        results: Sequence[SSAValue],
    ) -> Sequence[SSAValue | None]:
        """The gradients of the operands, None for those that have none; so are those of results that nobody reads."""
        ...

    def batch(
        self, b: GraphBuilder, op: OpaqueOp, operands: Sequence[SSAValue], flags: Sequence[bool], size: Size
    ) -> Sequence[SSAValue]:
        """The results with the batch in front, of operands of which the flagged ones have it there."""
        ...


CALL_RULES: dict[str, CallRules] = {}
"""The rules of calls, by their targets."""


def rules_of(op: Operation) -> CallRules | None:
    """The rules of a call; None of one without, and of ops that are no calls."""
    return CALL_RULES.get(op.target.data) if isinstance(op, OpaqueOp) else None
