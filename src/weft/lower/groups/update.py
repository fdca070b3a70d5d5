"""A slice that is updated where it lies → a kernel that writes the slice, and nothing of what is around it.

%y = graph.update_slice(%x, exp(%u)) starts=[0, 5]  {in_place = [[0, 0]]}    →    @update  x[:, 5:5+n] = exp(u)
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.lower.groups.kernels import try_lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered, slice_written_by
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import regroup
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, slice_layout


def lower_update(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that updates a slice in place, with what is computed before it."""
    update = slice_written_by(group)
    assert update is not None
    (output,) = outputs
    part = slice_layout(output, update.params["starts"], update.params["steps"])
    kernel = try_lower_group(_written(group), name, inputs, [part], machine=machine)
    if isinstance(kernel, Refusal):
        return kernel
    arguments = (*(Argument("input", number) for number in range(len(inputs))), Argument("output", 0))
    return Lowered((KernelCall(kernel, arguments),))


def _written(group: GroupOp) -> GroupOp:
    """The group with the slice's new elements as its result."""

    def new(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        update = slice_written_by(made)
        assert update is not None
        return [update.operands[1]]

    return regroup(group, new)
