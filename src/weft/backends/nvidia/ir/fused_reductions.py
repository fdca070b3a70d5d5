"""Ops that find two results of a row together: online softmax, and moments; and all ops that reduce an axis."""

from __future__ import annotations

from typing import Self, TypeAlias

from xdsl.dialects.builtin import IntegerAttr
from xdsl.irdl import attr_def, irdl_op_definition, operand_def, result_def

from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class OnlineSoftmaxOp(WeftOp):
    """exp(x - m) for the maximum m along an axis, with m and the sum of these."""

    name = "nvidia.online_softmax"
    value = operand_def(tile.TileType)
    axis = attr_def(IntegerAttr)
    powers = result_def(tile.TileType)
    largest = result_def(tile.TileType)
    sum = result_def(tile.TileType)

    @classmethod
    def make(cls, largest: tile.ReduceOp) -> Self:
        return cls.create(
            operands=[largest.value],
            attributes={"axis": largest.axis},
            result_types=[largest.value.type, largest.out.type, largest.out.type],
        )


@irdl_op_definition
class MomentsOp(WeftOp):
    """The sum of a tile along an axis, and that of the squared differences from the mean."""

    name = "nvidia.moments"
    value = operand_def(tile.TileType)
    axis = attr_def(IntegerAttr)
    total = result_def(tile.TileType)
    squares = result_def(tile.TileType)

    @classmethod
    def make(cls, total: tile.ReduceOp) -> Self:
        types = [total.out.type, total.out.type]
        return cls.create(operands=[total.value], attributes={"axis": total.axis}, result_types=types)


Reduction: TypeAlias = tile.ReduceOp | OnlineSoftmaxOp | MomentsOp
