"""Loads that are staged for dots, an iteration ahead: memory answers while the tensor cores multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block

from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.local_memory import LocalStoreOp
from weft.backends.nvidia.ir.mma import AGAIN, AHEAD, PACKED, RAW
from weft.backends.nvidia.ir.wgmma import WgmmaOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class PrefetchLoads(KernelPass):
    """Loads that are staged for dots, an iteration ahead, in registers that hold what memory does.

    %c = tile.for %k (%acc) {                   %c = tile.for %k (%acc) {
      %a = tile.load %x[..%k]                     %a = tile.load %x[..%k] {nvidia.ahead, nvidia.raw}
      nvidia.local_store %a                       %b = tile.load %w[..%k] {nvidia.ahead, nvidia.packed}
      %b = tile.load %w[..%k]               →     nvidia.local_store %a
      nvidia.local_store %b                       nvidia.local_store %b
      %r = nvidia.wgmma …                         %r = nvidia.wgmma …
      tile.yield nvidia.wgmma_wait %r }           tile.yield nvidia.wgmma_wait %r }

    Where there is one iteration, all loads come before what is staged, and no more is done.
    """

    name: ClassVar[str] = "prefetch_loads"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        found = any(_staged(loop) for loop in _loops(kernel))
        return True if found else Refused("no loop stages what it loads")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for loop in _loops(kernel):
            loads = _staged(loop)
            _load_first(loop.block, loads)
            for load in [] if _turns_once(loop) else loads:
                pairs = layout_of(load.out).neighbours > 1
                load.attributes |= {AHEAD: UnitAttr(), AGAIN: UnitAttr(), PACKED if pairs else RAW: UnitAttr()}


def _loops(kernel: tile.KernelOp) -> list[tile.ForOp]:
    return [op for op in kernel.walk() if isinstance(op, tile.ForOp)]


def _staged(loop: tile.ForOp) -> list[tile.LoadOp]:
    """What a loop loads, if it stages all of that for its dots, at places that follow from the loop's variable."""
    ops = list(loop.block.ops)
    loads = [op for op in ops if isinstance(op, tile.LoadOp)]
    if any(op.regions for op in ops) or not any(isinstance(op, WgmmaOp) for op in ops):
        return []
    uses = [use.operation for load in loads for use in load.out.uses]
    inside = [index for load in loads for index in load.indices if index is not loop.block.args[0]]
    known = not any(index.owner is loop.block or index.owner in ops for index in inside)
    return loads if known and all(isinstance(user, LocalStoreOp) for user in uses) else []


def _turns_once(loop: tile.ForOp) -> bool:
    lower, upper, step = loop.bounds.data
    left = upper - lower - step
    return isinstance(left, int) and left <= 0


def _load_first(block: Block, loads: list[tile.LoadOp]) -> None:
    """Ask for everything before any of it is waited for."""
    for load in reversed(loads):
        load.detach()
        first = block.first_op
        assert first is not None
        block.insert_op_before(load, first)
