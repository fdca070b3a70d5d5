"""How many elements a tile has at run time: the accesses that it is made of limit it, axis by axis."""

from __future__ import annotations

from typing import TypeAlias

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Size
from weft.tile import dialect as tile

Limit: TypeAlias = tuple[Size, tuple[SSAValue, ...]]
"""An extent, over d0, d1, ..., and the index operands that these stand for."""


class Limits:
    """The limits of the tiles of a kernel, each found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[SSAValue, int], tuple[Limit, ...]] = {}

    def of(self, value: SSAValue, axis: int) -> tuple[Limit, ...]:
        """What limits a tile along an axis, apart from its capacity. Nothing limits an axis of capacity 1."""
        key = (value, axis)
        if key not in self._found:
            limited = tile.tile_type(value).sizes[axis] != 1
            self._found[key] = tuple(dict.fromkeys(self._find(value, axis))) if limited else ()
        return self._found[key]

    def _find(self, value: SSAValue, axis: int) -> list[Limit]:
        match value.op if isinstance(value, OpResult) else None:
            case tile.LoadOp() | tile.PositionOp() as op:
                return [(op.extents.data[axis], tuple(op.indices))]
            case tile.MapOp() | tile.GatherOp() | tile.ReduceOp() as op:
                operands = [operand for operand in op.operands if isinstance(operand.type, tile.TileType)]
                return [limit for operand in operands for limit in self.of(operand, axis)]
            case tile.DequantizeOp() as op:
                return list(self.of(op.codes, 1)) if axis else []
            case tile.DotOp() as op if axis == 0:
                return list(self.of(op.a, 0))
            case tile.DotOp() as op if len(tile.tile_type(op.b).sizes) == 2:
                return list(self.of(op.b, 1))
            case _:
                return []
