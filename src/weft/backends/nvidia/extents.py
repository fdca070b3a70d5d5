"""How many elements the tiles of an annotated kernel have at run time: a conversion keeps their number."""

from __future__ import annotations

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.dialect import ConvertOp
from weft.tile.extents import Limit, Limits


class ConvertedLimits(Limits):
    """The limits of tiles, through conversions."""

    def _find(self, value: SSAValue, axis: int) -> list[Limit]:
        if isinstance(value, OpResult) and isinstance(value.op, ConvertOp):
            return list(self.of(value.op.value, axis))
        return super()._find(value, axis)
