"""Rows that many threads hold, and elementwise code, leave registers for blocks beside them."""

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

    Of plain code that people write, the assembler chooses (0): told of one block, it takes twice the registers that it
    needs, and half of the warps stay out that would read while others wait.

    tile.kernel @softmax {nvidia.warps = 16}     →     tile.kernel @softmax {nvidia.warps = 16, nvidia.resident = 2}
    """

    name: ClassVar[str] = "limit_registers"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        beside = blocks_beside(kernel, target.multiprocessors)
        return True if beside != 1 else Refused("its threads carry sums, or hold too much")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        set_integer(kernel, RESIDENT, blocks_beside(kernel, target.multiprocessors))
