"""Products of tiles on a CPU: a block of accumulators in registers, walked along K."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import LoweringError
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


def emit_dot(codegen: KernelCodegen, op: tile.DotOp) -> None:
    """Add the code of a product."""
    raise LoweringError(f"{op.name} has no code yet")
