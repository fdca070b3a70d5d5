"""Collectives that came with a captured graph: scheduled, and made calls of torch.distributed.

Their axes are names of process groups. Every rank of a group runs the same collectives in the same order, and each
stays a message of its own: one that waits for others would start later.
"""

from __future__ import annotations

from typing import Any

from xdsl.context import Context

from weft.frontends.torch.collectives.lower_collectives import CollectiveLowering
from weft.ops.collectives import Collective, Wait
from weft.ops.graph import FuncOp, module_of
from weft.passes.sharding.schedule_collectives import ScheduleCollectives
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.runtime.record import CompilationRecord


def has_collectives(function: FuncOp) -> bool:
    return any(isinstance(op, Collective | Wait) for op in function.block.ops)


def lower_captured(function: FuncOp, objects: dict[str, Any], record: CompilationRecord) -> None:
    """Make calls of a function's collectives, each started as early and awaited as late as the program allows."""
    module = module_of(function)
    await_all(function)
    EliminateCommon().apply(Context(), module)  # tied parameters are gathered once
    ScheduleCollectives().apply(Context(), module)
    record.program("collectives", function)
    axes = dict.fromkeys(op.params["axes"] for op in function.block.ops if isinstance(op, Collective))
    CollectiveLowering(function, {each: each[0] for each in axes}, objects).run()


def await_all(function: FuncOp) -> None:
    """Let all that reads a collective's result wait for it; one that nobody reads is awaited, too, at the end."""
    for op in list(function.block.ops):
        if not isinstance(op, Collective):
            continue
        for result in op.results:
            readers = [use for use in result.uses if not isinstance(use.operation, Wait)]
            if result.uses and not readers:
                continue
            wait = Wait.make(result, location=op.location)
            if readers:
                function.block.insert_op_after(wait, op)
            else:
                function.block.insert_op_before(wait, function.returned)
            for use in readers:
                use.operation.operands[use.index] = wait.results[0]
