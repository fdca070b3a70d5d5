"""Persistent blocks draw their programs where these are of different lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr

from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class MarkDynamic(KernelPass):
    """Let loops over programs go on with what is drawn: whichever block is free takes the next one.

    nvidia.warp_specialize {     →     nvidia.warp_specialize {
      tile.for %t … } { … }              tile.for %t … {nvidia.dynamic} } { … }
    """

    name: ClassVar[str] = "mark_dynamic"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return True if kernel.counter is not None else Refused("its programs are not counted")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for roles in [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]:
            for block in (roles.consumer.block, *roles.producers):
                for loop in [op for op in block.ops if isinstance(op, tile.ForOp)]:
                    loop.attributes[DYNAMIC] = UnitAttr()
