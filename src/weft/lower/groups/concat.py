"""Concatenations that leave a group → one kernel for each piece, which writes to its part of the output.

    %y = graph.concat(exp(%a), %b) dim=1      @piece0  y[:, :na] = exp(a)
                                         →    @piece1  y[:, na:] = b

No element is asked which piece it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.lower.groups.kernels import try_lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered, concat_of
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import regroup
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout


def lower_concat(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that gives a concatenation, with what is computed before it."""
    concat = concat_of(group)
    assert concat is not None
    (output,) = outputs
    dim: int = concat.params["dim"]
    arguments = (*(Argument("input", number) for number in range(len(inputs))), Argument("output", 0))
    calls: list[KernelCall] = []
    start: Size = 0
    for number, operand in enumerate(concat.operands):
        part = StridedLayout(output.strides, output.offset + output.strides[dim] * start)
        kernel = try_lower_group(_piece(group, number), f"{name}_piece{number}", inputs, [part], machine=machine)
        if isinstance(kernel, Refusal):
            return kernel
        calls.append(KernelCall(kernel, arguments))
        start = start + tensor_of(operand.type).shape[dim]
    return Lowered(tuple(calls))


def _piece(group: GroupOp, number: int) -> GroupOp:
    """The group with one operand of its concatenation as its result."""

    def piece(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        concat = concat_of(made)
        assert concat is not None
        return [concat.operands[number]]

    return regroup(group, piece)
