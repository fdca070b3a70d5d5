"""How dots of what was made of other dots overlap with what is made: two blocks beside each other, or consumers
that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block

from weft.backends.nvidia.ir.dialect import CONSUMERS, RESIDENT, set_integer
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.warp_specialization import PingPongBarrierOp, WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.matmul_unit import MatmulUnit
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

_MOST_HELD = 64
"""Registers of dots of 64 rows that a thread may hold where there are two blocks."""
_MANY, _MOST_OF_MANY, _TALL = 3, 96, 128
"""Dots of an iteration, so many registers of them, and rows, for which one warp group has less to wait for than two."""


@dataclass(frozen=True)
class PairBlocks(KernelPass):
    """Let two blocks stand beside each other where their tiles are so small that both fit, each with one warp group for
    all rows where an iteration has many dots: while one waits for a dot, the other works.

    tile.kernel @attention     →     tile.kernel @attention {nvidia.resident = 2}
    """

    name: ClassVar[str] = "pair_blocks"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if not MemoryGroups.of_kernel(kernel).written:
            return Refused("kernels of graphs have tiles that fill a multiprocessor")
        dots = _products_of_loops(kernel)
        most, held = max(map(len, dots), default=0), _held(dots, target.matmul_units[0])
        if most < 2:
            return Refused("no iteration of a loop has two dots")
        fits = held <= _MOST_HELD or _is_tall(dots, most, held)
        return True if fits else Refused(f"a thread holds {held} registers of dots: two blocks do not fit")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        set_integer(kernel, RESIDENT, 2)
        if _held(_products_of_loops(kernel), target.matmul_units[0]) > _MOST_HELD:
            set_integer(kernel, CONSUMERS, 1)


def _products_of_loops(kernel: tile.KernelOp) -> list[list[tile.DotOp]]:
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    return [[op for op in loop.block.ops if isinstance(op, tile.DotOp)] for loop in loops]


def _held(dots: Sequence[Sequence[tile.DotOp]], unit: MatmulUnit) -> int:
    """Registers of dots that a thread holds in an iteration."""
    counts = ([unit.registers_of(tile.tile_type(dot.out).sizes[1]) for dot in each] for each in dots)
    return max(map(sum, counts), default=0)


def _is_tall(dots: Sequence[Sequence[tile.DotOp]], most: int, held: int) -> bool:
    rows = {tile.tile_type(dot.out).sizes[0] for each in dots for dot in each}
    return most >= _MANY and held <= _MOST_OF_MANY and rows == {_TALL}


@dataclass(frozen=True)
class PingPong(KernelPass):
    """Let consumers begin several dots, between which they have other work to do, one consumer after the other.

    %s = nvidia.wgmma %q, %k               nvidia.ping_pong_barrier await
    %o = nvidia.wgmma %p, %v        →      %s = nvidia.wgmma %q, %k
    nvidia.wgmma_wait …                    %o = nvidia.wgmma %p, %v
                                           nvidia.ping_pong_barrier pass
                                           nvidia.wgmma_wait …
    """

    name: ClassVar[str] = "ping_pong"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        several = any(isinstance(op, WarpSpecializeOp) and op.consumers.value.data > 1 for op in kernel.block.ops)
        return True if several else Refused("it has one consumer")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for roles in [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]:
            programs = [op for op in roles.consumer.block.ops if isinstance(op, tile.ForOp)]
            for loop in [
                op for each in programs for op in each.walk() if isinstance(op, tile.ForOp) and op is not each
            ]:
                _add_barriers(loop.block)


def _add_barriers(block: Block) -> None:
    ops = list(block.ops)
    first = next((number for number, op in enumerate(ops) if isinstance(op, WgmmaWaitOp)), len(ops))
    begun = [op for op in ops[:first] if isinstance(op, WgmmaOp)]
    if len(begun) > 1:
        block.insert_op_before(PingPongBarrierOp.make("await"), begun[0])
        block.insert_op_after(PingPongBarrierOp.make("pass"), begun[-1])
