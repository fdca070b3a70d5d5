"""The tile dialect as a whole: what kernels made from graphs use, and what only those that people write need."""

from __future__ import annotations

from xdsl.ir import Dialect

from weft.tile.dialect import OPS, PointerType, Sizes, TileType
from weft.tile.kernel_ops import KERNEL_OPS

Tile = Dialect("tile", [*OPS, *KERNEL_OPS], [TileType, PointerType, Sizes])
