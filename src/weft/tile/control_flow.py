"""Ops of the tile dialect for control flow and messages: branches, loops, prints, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    region_def,
    var_operand_def,
    var_result_def,
)

from weft.ir.operations import WeftOp
from weft.tile.dialect import TileType


@irdl_op_definition
class IfOp(WeftOp):
    """What one of two blocks yields."""

    name = "tile.if"
    condition = operand_def(TileType)
    outs = var_result_def(TileType)
    then = region_def("single_block")
    otherwise = region_def("single_block")


@irdl_op_definition
class WhileOp(WeftOp):
    """`while condition(carried): carried = body(carried)`; both blocks take what is carried."""

    name = "tile.while"
    initial = var_operand_def(TileType)
    outs = var_result_def(TileType)
    condition = region_def("single_block")
    body = region_def("single_block")

    @classmethod
    def make(cls, initial: Sequence[SSAValue]) -> Self:
        types = [value.type for value in initial]
        return cls.build(
            operands=[list(initial)],
            result_types=[types],
            regions=[Region(Block(arg_types=types)), Region(Block(arg_types=types))],
        )


@irdl_op_definition
class PrintOp(WeftOp):
    """Write values to the standard output, with the program's numbers."""

    name = "tile.print"
    values = var_operand_def(TileType)
    prefix = attr_def(StringAttr)
    hexadecimal = opt_attr_def(UnitAttr)


@irdl_op_definition
class CheckOp(WeftOp):
    """Note where a condition is false; the launch then ends with an error."""

    name = "tile.check"
    condition = operand_def(TileType)
    mask = opt_operand_def(TileType)
    number = attr_def(IntegerAttr)
    """Which of the kernel's checks this is: the launch knows its message."""
