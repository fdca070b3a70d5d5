"""Arithmetic of kernels that people write as Triton compiles it: a product and a sum may be rounded once, powers of two
below the normal numbers may be zero, and quotients and roots may be 2 ulp away unless they are asked to be exact.

%p = tile.map mul(%x, %scale)                  %p = tile.map mul(%x, %scale) {contracts}
%d = tile.map sub(%p, %m)               →      %d = tile.map sub(%p, %m)
%e = tile.map exp2(%d)                         %e = tile.map exp2(%d) {flushes}
"""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr

from weft.ir.types import f32
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups


def relax_arithmetic(kernel: tile.KernelOp) -> None:
    """Annotate a kernel in place."""
    if not MemoryGroups.of_kernel(kernel).written:
        return
    for op in kernel.walk():
        if not isinstance(op, tile.MapOp) or tile.tile_type(op.out).dtype != f32:
            continue
        if op.function.data == "exp2":
            op.attributes[tile.FLUSHES] = UnitAttr()
        elif op.function.data in ("div", "sqrt") and tile.EXACT not in op.attributes:
            op.attributes[tile.ROUGH] = UnitAttr()
        elif op.function.data == "mul" and all(_adds(use.operation) for use in op.out.uses):
            op.attributes[tile.CONTRACTS] = UnitAttr()


def _adds(op: object) -> bool:
    return isinstance(op, tile.MapOp) and op.function.data in ("add", "sub")
