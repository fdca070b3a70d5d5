"""Which results of dots are written through shared memory: by TMA, or line by line by the warps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.backends.nvidia.code import TensorMap
from weft.backends.nvidia.ir.alignment import divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import launch_of, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.ir.tma_boxes import lines_of, tma_box_of
from weft.backends.nvidia.ir.tma_store import COORDINATES, LIMIT, LINES, MAP, POINTER, STAGE_COLUMNS, STAGE_ROWS
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import Size
from weft.ir.types import bf16, f16
from weft.tile import dialect as tile

_CHUNK = 16
"""Bytes that TMA writes at once."""


@dataclass(frozen=True)
class StageStores(KernelPass):
    """Let results of 16 bits be written through shared memory, 16 rows of 64 columns of a warp at a time.

    tile.store %y[%m, %n], %c     →     tile.store %y[%m, %n], %c {nvidia.map = 0, nvidia.coordinates = [%n, %m]}

    TMA does it where it can, else the warp, line by line.
    """

    name: ClassVar[str] = "stage_stores"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        maps: list[TensorMap] = []
        _stage(kernel, maps)
        if maps:
            set_launch(kernel, replace(launch_of(kernel), maps=tuple(maps)))


def _stage(kernel: tile.KernelOp, maps: list[TensorMap]) -> None:
    for op in kernel.walk():
        if not isinstance(op, tile.StoreOp) or op.spread is not None or pointer_dtype(op) not in (bf16, f16):
            continue
        shape = tile.tile_type(op.value).sizes
        if len(shape) != 2 or shape[0] % 64 or shape[1] % STAGE_COLUMNS:
            continue
        part, limit = tma_box_of(kernel, op, shape), _row_limit(kernel, op)
        if part is not None and part.inner == 1 and _ends_with_chunk(op) and (limit is None or part.is_known):
            if limit is not None:
                op.attributes[LIMIT] = tile.Sizes((limit,))
            set_integer(op, MAP, len(maps))
            op.attributes[COORDINATES] = tile.Sizes(part.coordinates)
            maps.append(part.map((STAGE_COLUMNS, STAGE_ROWS)))
        elif (lines := lines_of(kernel, op)) is not None:
            assert op.starts is not None
            lines = lines if limit is None else (lines[0], limit, *lines[2:])
            op.attributes |= {LINES: tile.Sizes(lines), COORDINATES: tile.Sizes(op.starts.data[::-1])}
            set_integer(op, POINTER, list(kernel.block.args).index(op.pointer))  # type: ignore[arg-type]


def _row_limit(kernel: tile.KernelOp, op: tile.StoreOp) -> Size | None:
    """The row that a tile ends before, where that is told by memory as the number of tiles is."""
    return None if kernel.limit is None or op.starts is None else op.starts.data[0] + op.extents.data[0]


def _ends_with_chunk(op: tile.StoreOp) -> bool:
    """Whether rows end where a chunk does: TMA writes whole ones, past the end of a tensor too."""
    assert op.sides is not None
    return divisor_of(op.sides.data[1], op.indices) * pointer_dtype(op).bytes % _CHUNK == 0
