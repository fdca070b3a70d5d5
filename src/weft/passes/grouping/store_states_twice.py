"""Let the kernel that makes a state of a loop write it to the stack of all turns, too: a turn copies nothing then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ops.base import Elementwise, Movement
from weft.ops.control import LoopOp, functions_run
from weft.ops.graph import FuncOp, GroupOp, YieldOp


@dataclass(frozen=True)
class StoreStatesTwice(ModulePass):
    """%h = graph.group(%x) {                    %h, %g = graph.group(%x) {
      %t = graph.tanh %x ; graph.yield %t }  →     %t = graph.tanh %x ; graph.yield %t, %t }
    %g = graph.group(%h) { graph.yield %h }      graph.return %h, %g
    graph.return %h, %g

    In the body of a loop the first is carried on and the second a row of a stack: each has memory of its own, and a
    copy in every turn would read and write what the kernel has in registers.
    """

    name: ClassVar[str] = "store_states_twice"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            for runner in list(function.block.ops) if isinstance(function, FuncOp) else ():
                if isinstance(runner, LoopOp):
                    for body in functions_run(runner):
                        _store_twice(body)


def _store_twice(body: FuncOp) -> None:
    returned = body.returned
    for place in range(len(returned.operands)):
        value = returned.operands[place]  # a group that is replaced has other results from then on
        source = _copied(value)
        if source is None and value in returned.operands[:place]:
            source = value
        if isinstance(source, OpResult) and isinstance(source.op, GroupOp) and _is_pointwise(source.op):
            returned.operands[place] = _again(source.op, source.index)
            if source is not value:
                _erase_unused(value.owner)


def _erase_unused(group: Operation | Block) -> None:
    if isinstance(group, GroupOp) and not any(list(result.uses) for result in group.results):
        group.detach()
        group.erase()


def _copied(value: SSAValue) -> SSAValue | None:
    """What a group gives on as it is, if it does nothing else."""
    group = value.owner
    if not isinstance(value, OpResult) or not isinstance(group, GroupOp) or len(list(group.block.ops)) != 1:
        return None
    given = group.yielded[value.index]
    return group.operands[given.index] if isinstance(given, BlockArgument) else None


def _is_pointwise(group: GroupOp) -> bool:
    return group.claim is None and all(isinstance(op, Elementwise | Movement | YieldOp) for op in group.block.ops)


def _again(group: GroupOp, result: int) -> OpResult:
    """One more result of a group, which is the same as another. The group is replaced."""
    last = group.block.last_op
    assert isinstance(last, YieldOp)
    last.operands = [*last.operands, last.operands[result]]
    made = GroupOp.create(
        operands=list(group.operands),
        result_types=[*(each.type for each in group.results), group.results[result].type],
        attributes=group.attributes,
        properties=group.properties,
        regions=[group.detach_region(0)],
        location=group.location,
    )
    parent = group.parent
    assert parent is not None
    parent.insert_op_before(made, group)
    for old, new in zip(group.results, made.results, strict=False):
        old.replace_all_uses_with(new)
    parent.erase_op(group)
    return made.results[-1]
