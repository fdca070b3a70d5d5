"""Arithmetic of kernels that people write as Triton compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.types import f32
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups


@dataclass(frozen=True)
class RelaxArithmetic(KernelPass):
    """Arithmetic of kernels that people write as Triton compiles it: a product and a sum may be rounded once, powers of
    two below the normal numbers may be zero, and quotients and roots may be 2 ulp away unless they are asked to be
    exact.

    %p = tile.map mul(%x, %scale)                  %p = tile.map mul(%x, %scale) {contracts}
    %d = tile.map sub(%p, %m)               →      %d = tile.map sub(%p, %m)
    %e = tile.map exp2(%d)                         %e = tile.map exp2(%d) {flushes}
    """

    name: ClassVar[str] = "relax_arithmetic"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        written = MemoryGroups.of_kernel(kernel).written
        return True if written else Refused("arithmetic of graphs is exact")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
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
