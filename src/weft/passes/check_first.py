"""Programs that write over their arguments look at their data first: what they refuse, they leave as it was.

A function with the attribute `checked` says by its last result what is wrong with the data, or 0. The runtime looks at
it before it lets steps run that come after what computes it.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from weft.ir.attributes import to_attribute
from weft.ops.graph import FuncOp, OpaqueOp

_ATTRIBUTE = "checked"


def state_verdict(function: FuncOp) -> None:
    """The function's last result is the number of what is wrong with its data."""
    function.attributes[_ATTRIBUTE] = to_attribute(True)


def verdict_of(function: FuncOp) -> SSAValue | None:
    """The value that says what is wrong with a function's data, where it has one."""
    return function.returned.operands[-1] if _ATTRIBUTE in function.attributes else None


def check_first(function: FuncOp) -> None:
    """Move what the verdict depends on to the front, in its order."""
    verdict = verdict_of(function)
    if verdict is None or not isinstance(verdict.owner, Operation):
        return
    needed = _needed(function, verdict.owner)
    first = function.block.first_op
    for op in [op for op in function.block.ops if op in needed]:
        if op is first:
            first = op.next_op
            continue
        op.detach()
        assert first is not None, "the return follows"
        function.block.insert_op_before(op, first)


def _needed(function: FuncOp, op: Operation) -> set[Operation]:
    """An op and all that it depends on. Calls with effects come after those that stand before them."""
    needed: set[Operation] = set()
    pending = [op]
    while pending:
        op = pending.pop()
        if op in needed or op.parent is not function.block:
            continue
        needed.add(op)
        pending += [operand.owner for operand in op.operands if isinstance(operand.owner, Operation)]
        if _has_effects(op):
            before = op.prev_op
            while before is not None:
                pending += [before] if _has_effects(before) else []
                before = before.prev_op
    return needed


def _has_effects(op: Operation) -> bool:
    return isinstance(op, OpaqueOp) and "pure" in op.attributes
