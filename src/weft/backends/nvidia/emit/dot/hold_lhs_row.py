"""The row of a dot with codes is brought to shared memory once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.backends.nvidia.emit.dot.lhs_row import LhsRow
from weft.backends.nvidia.ir.dialect import launch_of, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.mma import HELD, MmaOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class HoldLhsRow(KernelPass):
    """Give the row of a dot with codes, or of several, a place in shared memory.

    %p = tile.for %k (%acc) {                                     %p = tile.for %k (%acc) {
      %x = tile.load %row[%k] {packed, spread}              →       %x = tile.load %row[%k] {packed, spread, held}
      … nvidia.mma %x, (tile.dequantize …), %acc }                  … nvidia.mma %x, (tile.dequantize …), %acc }
    """

    name: ClassVar[str] = "hold_lhs_row"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return True if _held(kernel) is not None else Refused("it has no row that all dots with codes read")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        held, launch = _held(kernel), launch_of(kernel)
        assert held is not None
        set_integer(held.load, HELD, launch.shared)
        set_launch(kernel, replace(launch, shared=launch.shared + held.bytes))


def _held(kernel: tile.KernelOp) -> LhsRow | None:
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    return LhsRow.of(products[0]) if len({op.a for op in products}) == 1 else None
