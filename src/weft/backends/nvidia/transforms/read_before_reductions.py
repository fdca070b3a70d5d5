"""What several reductions read is asked for before threads exchange anything for the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.ir.dialect import ConvertOp, layout_of
from weft.backends.nvidia.ir.fused_reductions import Reduction
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.operations import users_of
from weft.tile import dialect as tile

_MOST_HELD = 80
"""Elements that a thread has of all that it asks for at once."""
_Simple: TypeAlias = (
    tile.ProgramOp
    | tile.ConstantOp
    | tile.PositionOp
    | tile.LoadOp
    | tile.GatherOp
    | tile.MapOp
    | ConvertOp
    | Reduction
)
"""What writes no memory."""


@dataclass(frozen=True)
class ReadBeforeReductions(KernelPass):
    """What several reductions read is asked for before threads exchange anything for the first of them.

    %x = tile.load %a[%p]                  %x = tile.load %a[%p]
    %s = tile.reduce sum %x axis 1    →    %y = tile.load %b[%p]
    %y = tile.load %b[%p]                  %s = tile.reduce sum %x axis 1
    %t = tile.reduce sum %y axis 1         %t = tile.reduce sum %y axis 1

    Threads that wait for each other cannot ask meanwhile: the kernel that adds up the programs' sums of two vectors
    waited for memory twice. What is needed behind a reduction as well stays where it is: it would be held for long.
    """

    name: ClassVar[str] = "read_before_reductions"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return True if _late(kernel) else Refused("no reduction stands before what only another one reads")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for load, first in _late(kernel):
            load.detach()
            kernel.block.insert_op_before(load, first)


def _late(kernel: tile.KernelOp) -> list[tuple[tile.LoadOp, Operation]]:
    """Loads behind a reduction that can come before it, each with the first such."""
    found: list[tuple[tile.LoadOp, Operation]] = []
    first: Operation | None = None
    held, behind = 0, set[Operation]()
    for op in kernel.block.ops:
        if not isinstance(op, _Simple):
            break
        if isinstance(op, tile.LoadOp):
            held += layout_of(op.out).count
            known = not any(value.owner in behind for value in op.operands)
            if first is not None and held <= _MOST_HELD and known and _is_only_reduced(op.out):
                found.append((op, first))
                continue
        elif first is None and isinstance(op, Reduction):
            first = op
        if first is not None:
            behind.add(op)
    return found


def _is_only_reduced(value: SSAValue) -> bool:
    """Whether nothing but reductions needs a tile, or what is computed of it element by element."""
    users = users_of(value)
    return all(
        isinstance(user, Reduction) or (isinstance(user, tile.MapOp) and _is_only_reduced(user.results[0]))
        for user in users
    )
