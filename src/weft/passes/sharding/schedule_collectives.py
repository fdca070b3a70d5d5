"""Schedule collectives: start each as early, and await it as late, as the order of the program and memory allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ops.base import View
from weft.ops.collectives import AllGather, Collective, Shard, Wait
from weft.ops.graph import FuncOp


@dataclass(frozen=True)
class ScheduleCollectives(ModulePass):
    """%p = graph.dot %x, %w              %p = graph.dot %x, %w
    %q = graph.exp %x                     %s = graph.all_reduce %p
    %s = graph.all_reduce %p        →     %q = graph.exp %x
    %t = graph.wait %s                    %t = graph.wait %s
    %r = graph.add %t, %q                 %r = graph.add %t, %q

    A collective moves up to behind what makes its operands, and a wait down to before what reads it first. The order of
    these collectives among each other stays.

    Gathers of arguments could all start at once, and every whole parameter would lie in memory from the beginning on.
    Each starts when the last but one before it is awaited: at most three are there at a time, beside those that later
    ops read again. All ranks run one program, so that they start all collectives in one order.
    """

    name: ClassVar[str] = "schedule_collectives"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                schedule(function)


_AHEAD = 2
"""How many gathers of arguments are under way while the one before them is read."""


def schedule(function: FuncOp) -> None:
    of_arguments = _sink_views_of_arguments(function)
    _start_early([op for op in function.block.ops if isinstance(op, Collective) and op not in of_arguments], function)
    _await_late(function)
    _gather_ahead([op for op in function.block.ops if isinstance(op, AllGather) and op in of_arguments], function)


def _sink_views_of_arguments(function: FuncOp) -> set[Operation]:
    """Moves what gathers arguments and looks at them, and does no more, down to before what reads it first."""
    found: dict[Operation, None] = {}
    places = {op: place for place, op in enumerate(function.block.ops)}
    for op in places:
        if isinstance(op, View | AllGather | Wait | Shard) and len(op.operands) == 1:
            source = op.operands[0].owner
            if not isinstance(source, Operation) or source in found:
                found[op] = None
    readers: dict[Operation, Operation] = {}
    for op in reversed(found):
        users = [readers.get(use.operation, use.operation) for result in op.results for use in result.uses]
        readers[op] = min(users, key=places.__getitem__, default=op)
    for op in found:
        if readers[op] is not op and readers[op] not in found:
            op.detach()
            function.block.insert_op_before(op, readers[op])
    return set(found)


def _start_early(collectives: Sequence[Operation], function: FuncOp) -> None:
    block = function.block
    places = {op: place for place, op in enumerate(block.ops)}
    started: Operation | None = None
    for op in collectives:
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


def _await_late(function: FuncOp) -> None:
    block = function.block
    places = {op: place for place, op in enumerate(block.ops)}
    for op in reversed(list(block.ops)):
        if isinstance(op, Wait):
            readers = [use.operation for result in op.results for use in result.uses]
            if readers:
                first = min(readers, key=places.__getitem__)
                op.detach()
                block.insert_op_before(op, first)
                places = {each: place for place, each in enumerate(block.ops)}


def _gather_ahead(gathers: Sequence[AllGather], function: FuncOp) -> None:
    """Starts gathers, which stand in the order in which they are read, a few reads early."""
    block = function.block
    places = {op: place for place, op in enumerate(block.ops)}
    awaited: list[Operation] = []
    last: Operation | None = None
    for op in gathers:
        chain = _views_before(op)
        if isinstance(chain[0].operands[0].owner, Operation):
            continue  # a view that others read, too, or one more axis of the gather before it
        for each in chain:
            each.detach()
            if len(awaited) >= _AHEAD:
                block.insert_op_before(each, awaited[-_AHEAD])
            elif last is None:
                block.insert_op_before(each, block.first_op)  # type: ignore[arg-type]
            else:
                block.insert_op_after(each, last)
            last = each
        awaited.append(min((use.operation for use in op.results[0].uses), key=places.__getitem__, default=op))


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
