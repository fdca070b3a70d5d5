"""Hoisted dots: those of an iteration that wait for none of its others begin together with the first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block, Operation, OpResult

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

_MOST_EARLY = 32
"""Registers that a thread may hold of dots which begin earlier than they stand."""
_PURE = (
    tile.ConstantOp,
    tile.PositionOp,
    tile.MapOp,
    tile.LoadOp,
    collective_ops.ViewOp,
    pointer_ops.IndexOp,
    AffineApplyOp,
)


@dataclass(frozen=True)
class HoistDots(KernelPass):
    """Hoisted dots: those of an iteration that wait for none of its others begin together with the first one.

    %s = tile.dot %k, %q                           %s = tile.dot %k, %q
    %p = powers of %s                              %g = tile.load …
    %g = tile.load …                        →      %d = tile.dot %v, %g
    %d = tile.dot %v, %g                           %p = powers of %s
    … of %p and %d                                 … of %p and %d

    The second runs while powers are raised of the first. What an iteration reads for rows or columns alone is asked for
    before its first dot, and is there by the time it is needed.
    """

    name: ClassVar[str] = "hoist_dots"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        written = MemoryGroups.of_kernel(kernel).written
        return True if written else Refused("dots of graphs stand where they begin")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        unit = target.matmul_units[0]
        for loop in [op for op in kernel.walk() if isinstance(op, tile.ForOp)]:
            dots = [op for op in loop.block.ops if isinstance(op, tile.DotOp)]
            if not dots:
                continue
            left, last = _MOST_EARLY, dots[0]
            for dot in dots[1:]:
                needed, held = _needed(loop.block, dot), unit.registers_of(tile.tile_type(dot.out).sizes[1])
                if needed is not None and held <= left:
                    _move(loop.block, needed, dot, last)
                    left, last = left - held, dot
            if any(
                isinstance(op, tile.ScatterOp | tile.StoreOp | pointer_ops.AtomicOp) or op.regions
                for op in loop.block.ops
            ):
                continue
            for gather in [op for op in loop.block.ops if isinstance(op, tile.GatherOp)]:
                needed = _needed(loop.block, gather)
                is_line = len(tile.tile_type(gather.out).sizes) == 1
                if needed is not None and is_line and dots[0].is_before_in_block(gather):
                    _move(loop.block, needed, gather, dots[0], before=True)


def _move(block: Block, needed: set[Operation], op: Operation, place: Operation, *, before: bool = False) -> None:
    """Move an op, and what it needs of what stands behind a place, to behind that or before it."""
    moved = [*(each for each in block.ops if each in needed and place.is_before_in_block(each)), op]
    for each in moved:
        each.detach()
    if before:
        block.insert_ops_before(moved, place)
    else:
        block.insert_ops_after(moved, place)


def _needed(block: Block, op: Operation) -> set[Operation] | None:
    """The ops of a block that one is computed by, if they can stand anywhere in it."""
    found: set[Operation] = set()
    left = list(op.operands)
    while left:
        value = left.pop()
        if not isinstance(value, OpResult) or value.op.parent is not block or value.op in found:
            continue
        if not isinstance(value.op, _PURE):
            return None
        found.add(value.op)
        left += value.op.operands
    return found
