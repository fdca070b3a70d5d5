"""The dots of a kernel whose warps are whole warp groups: what `wgmma` can multiply from shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.nvidia.ir.dialect import WARPS, integer
from weft.backends.nvidia.ir.kernel_passes import Refused
from weft.backends.nvidia.matmul_unit import MatmulUnit
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile

_GROUP_WARPS = 4


@dataclass(frozen=True)
class WarpGroupDots:
    """The dots, what multiplies them, and the warps of a block."""

    dots: list[tile.DotOp]
    unit: MatmulUnit
    warps: int

    @property
    def groups(self) -> int:
        return self.warps // _GROUP_WARPS


def dots_of_warp_groups(kernel: tile.KernelOp, target: NvidiaTarget) -> WarpGroupDots | Refused:
    """All dots of a kernel, if the target multiplies from shared memory and the kernel has whole warp groups."""
    warps, unit = integer(kernel, WARPS), target.matmul_unit("shared")
    if unit is None:
        return Refused(f"{target.arch} has nothing that multiplies from shared memory")
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    if not dots or not warps or warps % _GROUP_WARPS:
        return Refused("it has no dots, or no whole warp groups")
    return WarpGroupDots(dots, unit, warps)
