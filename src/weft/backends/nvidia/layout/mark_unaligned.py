"""Rows that begin anywhere are moved 16 bytes at a time, and shifted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr

from weft.backends.nvidia.ir.alignment import UNALIGNED, access_of, pointer_dtype
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile

_LEAST_AT_ONCE = 4
"""Bytes at a time below which it pays to read at multiples of 16, and to shift what was read."""
_WORTH_SHIFTING = 256
"""Elements of a row from which on its ends, which are written one by one, count for little."""


@dataclass(frozen=True)
class MarkUnaligned(KernelPass):
    """Let a kernel move rows that begin anywhere 16 bytes at a time, if it has no others and they are long.

    %x = tile.load %a[%p * 8191] : bf16     →     %x = tile.load %a[%p * 8191] {nvidia.unaligned}

    Others would have to be moved in pieces that lie apart: a thread has the same elements of all.
    """

    name: ClassVar[str] = "mark_unaligned"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if "schedule" not in kernel.attributes:
            return Refused("memory of a kernel that people write may itself begin anywhere")
        return True if _shifted(kernel) else Refused("its rows are short, or begin where 4 bytes or more are moved")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in _shifted(kernel):
            op.attributes[UNALIGNED] = UnitAttr()


def _shifted(kernel: tile.KernelOp) -> list[tile.LoadOp | tile.StoreOp]:
    """The accesses to long rows, if all of them begin anywhere."""
    moved: list[tile.LoadOp | tile.StoreOp] = []
    for op in kernel.walk():
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            shape = tile.tile_type(op.out if isinstance(op, tile.LoadOp) else op.value).sizes
            access, size = access_of(op, shape), pointer_dtype(op).bytes
            if max(shape, default=1) < _WORTH_SHIFTING:
                continue  # one for a row
            if access.axis is None or shape[access.axis] < _WORTH_SHIFTING or access.vector * size >= _LEAST_AT_ONCE:
                return []
            moved.append(op)
    return moved
