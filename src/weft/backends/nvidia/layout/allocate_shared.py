"""Shared memory of a kernel: how much each op needs, where it lies, and where threads must wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.ir import Block

from weft.backends.nvidia.ir.dialect import (
    SHARED,
    BarrierOp,
    integer,
    launch_of,
    set_integer,
    set_launch,
)
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.shared_bytes import (
    shared_bytes,
)
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import control_flow
from weft.tile import dialect as tile

_ALIGNMENT = 128
_SMALL = 4096


@dataclass(frozen=True)
class AllocateShared(KernelPass):
    """Give every op that needs shared memory a place, behind what the launch has already.

    An op that goes through shared memory writes it, waits for all threads, and reads it. So the next such op may write
    somewhere else at once, but over what the last one reads only behind a barrier. Ops take turns between two places as
    long as both fit, so that most need none.

    %a = tile.reduce …      →    %a = tile.reduce … {nvidia.shared = 0}
    %b = tile.reduce …           %b = tile.reduce … {nvidia.shared = 256}
    %c = tile.reduce …           %c = tile.reduce … {nvidia.shared = 0}       // all have passed %b's barrier
    """

    name: ClassVar[str] = "allocate_shared"
    decides: ClassVar[bool] = True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        launch = launch_of(kernel)
        end = allocate_shared(kernel, target.shared_per_block - launch.shared, launch.shared)
        if isinstance(end, Refused):
            return end
        set_launch(kernel, replace(launch, shared=end))
        return None


def allocate_shared(kernel: tile.KernelOp, limit: int, start: int = 0) -> int | Refused:
    """Give every op that needs shared memory a place, from `start` on; returns where the kernel's memory ends."""
    users = [(op, size) for op in kernel.walk() if (size := shared_bytes(op))]
    largest = max((_aligned(size) for _, size in users), default=0)
    if largest > limit:
        needed = f"a tile needs {largest} bytes of shared memory, a block has {limit}"
        return Refused(needed, hint="smaller tiles need less")
    two = largest <= _SMALL and len(users) > 1
    for turn, (op, _) in enumerate(users):
        set_integer(op, SHARED, _aligned(start) + (largest * (turn % 2) if two else 0))
    _insert_barriers(kernel.block, frozenset())
    return _aligned(start) + largest * (2 if two else 1) if users else start


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _insert_barriers(block: Block, reading: frozenset[int], dry: bool = False) -> frozenset[int]:
    """Put barriers before ops that write what others may still read; `reading` are the places read at the start.

    Returns the places that are being read at the end. `dry` only finds out.
    """
    for op in list(block.ops):
        if isinstance(op, BarrierOp):
            reading = frozenset()
        elif shared_bytes(op):
            place = integer(op, SHARED)
            if place in reading and not dry:
                block.insert_op_before(BarrierOp.create(), op)
            reading = frozenset({place})
        blocks = [inner for region in op.regions for inner in region.blocks]
        if isinstance(op, tile.ForOp | control_flow.WhileOp):  # an iteration may start where the last one ended
            for inner in blocks:
                reading |= _insert_barriers(inner, reading, dry=True)
        for inner in blocks:
            reading |= _insert_barriers(inner, reading, dry)
    return reading
