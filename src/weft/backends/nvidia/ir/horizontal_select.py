"""Horizontal select: which tensors a program of horizontally fused kernels has.

    %i, %x, %y = nvidia.horizontal_select %p among [0, 64, 80] (%x0, %y0), (%x1, %y1), (%x2, %y2)

Programs from 0 on have the first tensors, those from 64 on the second ones. All threads of a block go down a tree of
comparisons, at whose leaves are the addresses: few instructions, however many tensors there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    operand_def,
    result_def,
    var_operand_def,
    var_result_def,
)

from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class HorizontalSelectOp(WeftOp):
    """The stretch of programs that one is in: its number there, and the pointers of the stretch."""

    name = "nvidia.horizontal_select"
    program = operand_def(IndexType)
    pointers = var_operand_def(tile.PointerType)
    """Those of the first stretch, then those of the second…"""
    starts = attr_def(tile.Sizes)
    number = result_def(IndexType)
    picked = var_result_def(tile.PointerType)

    @classmethod
    def make(cls, program: SSAValue, starts: Sequence[int], pointers: Sequence[Sequence[SSAValue]]) -> Self:
        return cls.create(
            operands=[program, *(pointer for each in pointers for pointer in each)],
            attributes={"starts": tile.Sizes(tuple(starts))},
            result_types=[IndexType(), *(pointer.type for pointer in pointers[0])],
        )

    def becomes(self, operand: int) -> SSAValue:
        """The result that is an operand, by its number, in some programs."""
        return self.picked[(operand - 1) % len(self.picked)]
