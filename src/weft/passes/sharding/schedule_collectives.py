"""Schedule collectives: start each as early, and await it as late, as the order of the program allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ops.base import View
from weft.ops.collectives import Collective, Wait
from weft.ops.graph import FuncOp


@dataclass(frozen=True)
class ScheduleCollectives(ModulePass):
    """%p = graph.dot %x, %w              %p = graph.dot %x, %w
    %q = graph.exp %x                     %s = graph.all_reduce %p
    %s = graph.all_reduce %p        →     %q = graph.exp %x
    %t = graph.wait %s                    %t = graph.wait %s
    %r = graph.add %t, %q                 %r = graph.add %t, %q

    A collective moves up to behind what makes its operands, and a wait down to before what reads it first. The order of
    collectives among each other stays: all ranks have to start them in one order.
    """

    name: ClassVar[str] = "schedule_collectives"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                schedule(function)


def schedule(function: FuncOp) -> None:
    block = function.block
    places = {op: place for place, op in enumerate(block.ops)}
    started: Operation | None = None
    for op in list(block.ops):
        if not isinstance(op, Collective):
            continue
        chain = _views_before(op)
        # The views between what is computed and the collective cost nothing: they go along.
        sources = [value.owner for each in chain for value in each.operands if value.owner not in chain]
        makers = [source for source in sources if isinstance(source, Operation)]
        last = max(makers, key=places.__getitem__, default=None)
        if started is not None and (last is None or places[started] > places[last]):
            last = started
        for each in chain:
            each.detach()
        for each in reversed(chain):
            if last is None:
                block.insert_op_before(each, block.first_op)  # type: ignore[arg-type]
            else:
                block.insert_op_after(each, last)
        places = {each: place for place, each in enumerate(block.ops)}
        started = op
    for op in reversed(list(block.ops)):
        if isinstance(op, Wait):
            readers = [use.operation for result in op.results for use in result.uses]
            if readers:
                first = min(readers, key=places.__getitem__)
                op.detach()
                block.insert_op_before(op, first)
                places = {each: place for place, each in enumerate(block.ops)}


def _views_before(op: Operation) -> list[Operation]:
    """A collective with the views before it that nobody else reads, in order."""
    chain = [op]
    while (
        len(chain[0].operands) == 1
        and isinstance(source := chain[0].operands[0].owner, View)
        and len(list(source.results[0].uses)) == 1
    ):
        chain.insert(0, source)
    return chain
