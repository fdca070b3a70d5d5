"""Give the kernels that users write their operands as they expect them: in the strides they were told, theirs to write.

It runs on grouped functions, after all else is decided; planning puts each tied result where its operand is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.passes import ModulePass

from weft.errors import LoweringError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import tensor_of
from weft.ops.base import View, viewed
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp
from weft.ops.layouts import StridedLayout, contiguous, is_dense, view_layout
from weft.passes.grouping.build_groups import result_targets, strides_of


@dataclass(frozen=True)
class PlaceLaunches(ModulePass):
    """A launch writes over an operand; where that is still needed, or lies otherwise, it gets a copy.

    %r = graph.launch(%x) tied [0]          %c = graph.group(%x) { yield %x }
    f(%x, %r)                          →    %r = graph.launch(%c) tied [0]
                                            f(%x, %r)
    """

    name: ClassVar[str] = "place_launches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and any(isinstance(each, LaunchOp) for each in function.block.ops):
                _Placing(function).run()


def wanted_layouts(launch: LaunchOp) -> list[StridedLayout]:
    """How the operands of a launch must lie in memory; where they begin is of no importance."""
    strides = strides_of(launch, "arg_strides", len(launch.operands))
    return [
        StridedLayout(given) if given else contiguous(tensor_of(operand.type))
        for operand, given in zip(launch.operands, strides, strict=True)
    ]


def lies_as(value: SSAValue, layout: StridedLayout | None, wanted: StridedLayout) -> bool:
    """Whether the elements of a value are as far apart as wanted. Where there is one element that says nothing."""
    if layout is None:
        return False
    shape = tensor_of(value.type).shape
    pairs = zip(shape, layout.strides, wanted.strides, strict=True)
    return 0 in shape or all(size == 1 or given == step for size, given, step in pairs)


class _Placing:
    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.order = {op: place for place, op in enumerate(function.block.ops)}
        self.targets = result_targets(function)
        given = strides_of(function, "arg_strides", len(function.block.args))
        self.argument_strides: dict[SSAValue, Any] = dict(zip(function.block.args, given, strict=True))

    def run(self) -> None:
        for launch in list(self.function.block.ops):
            if not isinstance(launch, LaunchOp):
                continue
            for place, wanted in enumerate(wanted_layouts(launch)):
                operand = launch.operands[place]
                fits = lies_as(operand, self._layout(operand), wanted)
                if not fits or (place in launch.starts_from and not self._may_go(launch, place)):
                    launch.operands[place] = self._copied(operand, wanted, launch)

    def _copied(self, value: SSAValue, wanted: StridedLayout, before: LaunchOp) -> SSAValue:
        tensor = tensor_of(value.type)
        if not is_dense(tensor, wanted):
            raise LoweringError(f"a kernel reads {tensor} with the strides {wanted.strides}, which leave gaps")
        block = Block(arg_types=[value.type])
        block.add_op(YieldOp.create(operands=[block.args[0]]))
        group = GroupOp.create(
            operands=[value], result_types=[value.type], regions=[Region(block)], location=before.location
        )
        if wanted != contiguous(tensor):
            group.attributes["result_strides"] = to_attribute((wanted.strides,))
        self.function.block.insert_op_before(group, before)
        self.order[group] = self.order[before]
        return group.results[0]

    def _layout(self, value: SSAValue) -> StridedLayout | None:
        if value in self.targets:
            return self.targets[value].layout
        strides = self.argument_strides.get(value)
        match value.owner:
            case GroupOp() | OpaqueOp() | LaunchOp() as op if isinstance(value, OpResult):
                strides = strides_of(op, "result_strides", len(op.results))[value.index]
            case View() as op:
                source = self._layout(op.operands[0])
                return None if source is None else view_layout(op, source)
            case _:
                pass
        return StridedLayout(strides) if strides else contiguous(tensor_of(value.type))

    def _may_go(self, launch: LaunchOp, place: int) -> bool:
        """Whether nobody needs an operand after a launch, which may write over it then."""
        operand = launch.operands[place]
        if isinstance(operand, BlockArgument):
            return self._is_replaced(operand, launch, place) and self._reads_last(launch, operand)
        return isinstance(operand.owner, GroupOp | LaunchOp) and operand.has_one_use()

    def _is_replaced(self, argument: BlockArgument, launch: LaunchOp, place: int) -> bool:
        """Whether what comes of a launch, or of those after it, is the argument's new value and nothing else."""
        attribute = self.function.attributes.get("replaced")
        pairs = [] if attribute is None else list(cast("Any", from_attribute(attribute)))
        value: SSAValue = launch.results[launch.starts_from.index(place)]
        while value.has_one_use():
            ((user, index),) = [(use.operation, use.index) for use in value.uses]
            if isinstance(user, ReturnOp):
                return (argument.index, index) in pairs
            if not isinstance(user, LaunchOp) or index not in user.starts_from:
                return False
            value = user.results[user.starts_from.index(index)]
        return False

    def _reads_last(self, launch: LaunchOp, argument: BlockArgument) -> bool:
        if [viewed(operand) for operand in launch.operands].count(argument) > 1:
            return False
        last = self.order[launch]
        return all(reader is launch or self._comes_before(reader, last) for reader in _readers(argument))

    def _comes_before(self, reader: Operation, place: int) -> bool:
        # What the framework gives may lie in the memory of what it took.
        return not isinstance(reader, OpaqueOp) and self.order.get(reader, len(self.order)) < place


def _readers(value: SSAValue) -> Iterator[Operation]:
    """Who reads a value, directly or through views."""
    for use in value.uses:
        if isinstance(use.operation, View):
            yield from _readers(use.operation.results[0])
        else:
            yield use.operation
