"""Concatenations that leave a group → one kernel for each piece, which writes to its part of the output.

    %y = graph.concat(exp(%a), %b) dim=1      @piece0  y[:, :na] = exp(a)
                                         →    @piece1  y[:, na:] = b

No element is asked which piece it belongs to. Pieces of one shape that are computed of the same elements, as gradients
of the halves of a gated unit are, have a kernel together: what both read is read once.
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
from weft.ops.base import Elementwise
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.movement import Concat
from weft.passes.simplify.padding_rules import computed_of


def lower_concat(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that gives a concatenation, with what is computed before it."""
    concat = concat_of(group)
    assert concat is not None
    (output,) = outputs
    dim: int = concat.params["dim"]
    parts: list[StridedLayout] = []
    start: Size = 0
    for operand in concat.operands:
        parts.append(StridedLayout(output.strides, output.offset + output.strides[dim] * start))
        start = start + tensor_of(operand.type).shape[dim]
    reads = [Argument("input", number) for number in range(len(inputs))]
    calls: list[KernelCall] = []
    waiting = _together(concat)
    while waiting:
        numbers = waiting.pop(0)
        own, called = [parts[number] for number in numbers], f"{name}_piece{numbers[0]}"
        kernel = try_lower_group(_pieces(group, numbers), called, inputs, own, machine=machine)
        if not isinstance(kernel, Refusal):
            calls.append(KernelCall(kernel, (*reads, *(Argument("output", 0) for _ in numbers))))
        elif len(numbers) == 1:
            return kernel
        else:
            waiting[:0] = [[number] for number in numbers]
    return Lowered(tuple(calls))


def _together(concat: Concat) -> list[list[int]]:
    """The numbers of pieces that have a kernel in common: different ones, computed of elements that all read."""
    found: list[tuple[list[int], set[SSAValue]]] = []
    for number, piece in enumerate(concat.operands):
        read = computed_of(piece) if isinstance(piece.owner, Elementwise) else set[SSAValue]()
        for numbers, common in found:
            others = {concat.operands[each] for each in numbers}
            if piece.type == concat.operands[numbers[0]].type and piece not in others and not common.isdisjoint(read):
                numbers.append(number)
                common &= read
                break
        else:
            found.append(([number], read))
    return [numbers for numbers, _ in found]


def _pieces(group: GroupOp, numbers: Sequence[int]) -> GroupOp:
    """The group with operands of its concatenation as its results."""

    def pieces(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        concat = concat_of(made)
        assert concat is not None
        return [concat.operands[number] for number in numbers]

    return regroup(group, pieces)
