"""Rows that many threads hold leave registers for blocks beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.backends.nvidia.ir.dialect import RESIDENT, set_integer
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.layout.anchors import blocks_beside
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class LimitRegisters(KernelPass):
    """Say how many blocks a multiprocessor should have registers for, where many threads hold a row, or carry sums.

    tile.kernel @softmax {nvidia.warps = 16}     →     tile.kernel @softmax {nvidia.warps = 16, nvidia.resident = 2}
    """

    name: ClassVar[str] = "limit_registers"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        beside = blocks_beside(kernel, target.multiprocessors)
        return True if beside > 1 else Refused("threads do not hold a row of 16 bits, nor carry sums")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        set_integer(kernel, RESIDENT, blocks_beside(kernel, target.multiprocessors))
