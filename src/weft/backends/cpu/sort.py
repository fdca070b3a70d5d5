"""Sorting on a CPU: bottom-up merge sort of keys with their positions, stable, NaN as the greatest value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import LoweringError
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


def emit_sort(codegen: KernelCodegen, op: tile.SortOp) -> None:
    """Add the code of a sort."""
    raise LoweringError(f"{op.name} has no code yet")
