"""Stores of a dot's tile by TMA, or line by line: through places of each warp's in shared memory, piece by piece.

%w = nvidia.truncate_pack %c                    words of two neighbours of 16 bits
nvidia.tma_store %w piece 0 ; nvidia.tma_store %w piece 1 ; …     while the next tile is multiplied
"""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import IndexType, IntegerAttr, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, operand_def, result_def, var_operand_def

from weft.backends.nvidia.ir.rings import LINE
from weft.ir.operations import WeftOp
from weft.ir.types import DType, i32
from weft.tile import dialect as tile

MAP, COORDINATES, LIMIT = "nvidia.map", "nvidia.coordinates", "nvidia.limit"
"""On a store that TMA makes: the tensor map, and where in it the tile begins. Where the tile ends in the
midst of the tensor, the row that it ends before."""
LINES, POINTER = "nvidia.lines", "nvidia.pointer"
"""On a store that warps make line by line: how many columns and rows the matrix has, the elements from one row to the
next and before the first, and what number of elements lines begin at multiples of; which argument its memory is."""
STAGE_ROWS, STAGE_COLUMNS = 16, 64
STAGE_BYTES = STAGE_ROWS * LINE
"""What a warp hands TMA to write: through one of two places of its own in shared memory."""


@irdl_op_definition
class TruncatePackOp(WeftOp):
    """A dot's tile as words of two neighbours of 16 bits each, to be written later."""

    name = "nvidia.truncate_pack"
    value = operand_def(tile.TileType)
    dtype = attr_def(StringAttr)
    out = result_def(tile.TileType)

    @classmethod
    def make(cls, value: SSAValue, dtype: DType) -> Self:
        attributes = {"dtype": StringAttr(dtype.name)}
        return cls.create(operands=[value], attributes=attributes, result_types=[packed_type(value)])


@irdl_op_definition
class TmaStoreOp(WeftOp):
    """Write one of the pieces of a narrowed tile, 64 rows of a warp group and 64 columns, as its store would."""

    name = "nvidia.tma_store"
    words = operand_def(tile.TileType)
    indices = var_operand_def(IndexType)
    piece = attr_def(IntegerAttr)


OPS: list[type[IRDLOperation]] = [TruncatePackOp, TmaStoreOp]


def is_staged(op: Operation) -> bool:
    """Whether a store goes through its warp's places in shared memory."""
    return MAP in op.attributes or LINES in op.attributes


def packed_type(value: SSAValue) -> tile.TileType:
    """The type of a tile's words."""
    rows, columns = tile.tile_type(value).sizes
    return tile.TileType.of((rows, columns // 2), i32)
