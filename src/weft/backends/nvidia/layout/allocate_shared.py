"""Shared memory of a kernel: how much each op needs, where it lies, and where threads must wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from xdsl.ir import Block, Operation

from weft.backends.nvidia.emit.block import register_bytes
from weft.backends.nvidia.emit.dot.fma_dot import dot_bytes
from weft.backends.nvidia.ir.dialect import (
    SHARED,
    BarrierOp,
    ConvertOp,
    integer,
    launch_of,
    layout_of,
    set_integer,
    set_launch,
)
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.shared_bytes import written_bytes
from weft.backends.nvidia.target import NvidiaTarget
from weft.backends.nvidia.transforms.fuse_moments import MomentsOp
from weft.backends.nvidia.transforms.fuse_online_softmax import ExponentialsOp
from weft.tile import control_flow
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

_ALIGNMENT = 128
_SMALL = 4096


def shared_bytes(op: Operation) -> int:
    """The shared memory that an op needs while it runs."""
    match op:
        case ConvertOp():
            type_ = tile.tile_type(op.out)
            return prod(_padded(type_.sizes, register_bytes(type_.dtype))) * register_bytes(type_.dtype)
        case tile.ReduceOp() | ExponentialsOp() | MomentsOp() if CROSSES not in op.attributes:
            layout = layout_of(op.value)
            if not crosses_warps(layout, op.axis.value.data):
                return 0
            return sum(part_bytes(op)) * WARP * layout.warp_count * layout.sliced(op.axis.value.data).count
        case tile.DotOp():
            return dot_bytes(op)
        case _:
            return written_bytes(op)


def crossing_bytes(op: Operation) -> int:
    """What the blocks of a cluster hold of a reduction at once: a result of each warp of each of them."""
    assert isinstance(op, tile.ReduceOp | ExponentialsOp | MomentsOp)
    layout = layout_of(op.value)
    return sum(sent_bytes(size) for size in part_bytes(op)) * layout.block_count * layout.warp_count


def part_bytes(op: tile.ReduceOp | ExponentialsOp | MomentsOp) -> tuple[int, ...]:
    """The bytes of what a reduction combines: a value, its position where that counts, or what goes together."""
    size = register_bytes(tile.tile_type(op.value).dtype)
    if isinstance(op, ExponentialsOp):
        return size, size
    if isinstance(op, MomentsOp):
        return size, size, size
    return (size, 8) if COMBINERS[op.kind.data].indexed else (size,)


def sent_bytes(size: int) -> int:
    """Blocks send each other words of 4 or 8 bytes."""
    return max(size, 4)


def crosses_warps(layout: Layout, axis: int) -> bool:
    """Whether elements along an axis are in different warps."""
    return any(mode.axis == axis for mode in (*layout.warps, *layout.blocks))


def _padded(sizes: Sequence[int], size: int) -> tuple[int, ...]:
    return (*sizes[:-1], row_pitch(sizes[-1], size)) if sizes else ()


def row_pitch(side: int, size: int) -> int:
    """The elements from one row of a tile in shared memory to the next: one more than it has, so that columns spread
    over the banks."""
    return side + max(1, 4 // size)


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
        if isinstance(op, tile.ForOp | control_flow.WhileOp):  # a turn may start where the last one ended
            for inner in blocks:
                reading |= _insert_barriers(inner, reading, dry=True)
        for inner in blocks:
            reading |= _insert_barriers(inner, reading, dry)
    return reading
