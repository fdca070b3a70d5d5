"""How many elements the tiles of an annotated kernel have at run time: a conversion keeps their number."""

from __future__ import annotations

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.ir.dialect import ConvertOp
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.mma import MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.row_streams import ReadOp
from weft.tile import dialect as tile
from weft.tile.extents import Limit, Limits


class ConvertedLimits(Limits):
    """The limits of tiles, through conversions."""

    def _find(self, value: SSAValue, axis: int) -> list[Limit]:
        match value.op if isinstance(value, OpResult) else None:
            case ConvertOp() | PackOp() | OnlineSoftmaxOp() | MomentsOp() as op:
                return list(self.of(op.value, axis))
            case ReadOp() as op if op.extents is not None:
                return [(op.extents.data[axis], tuple(op.indices))]
            case SqueezeOp() as op:
                return list(self.of(op.value, axis + 1))
            case MmaOp() as op:
                first = len(tile.tile_type(op.out).sizes) - 2
                return [] if axis < first else list(self.of(op.a, 0) if axis == first else self.of(op.b, 1))
            case _:
                return super()._find(value, axis)
