"""Online softmax: a row's maximum and the sum of its exponentials are found together, threads exchange results once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from weft.backends.nvidia.ir.fused_reductions import OnlineSoftmaxOp
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.operations import users_of
from weft.ir.types import f32
from weft.tile import dialect as tile

_LEAST = 512
"""Elements of a row from which on threads have so many of it that the few exponentials more count for nothing."""


@dataclass(frozen=True)
class FuseOnlineSoftmax(KernelPass):
    """Online softmax: a row's maximum and the sum of its exponentials are found together, threads exchange results
    once.

    %m = tile.reduce max %x axis 0                %e, %m, %s = nvidia.online_softmax %x axis 0
    %d = tile.map sub(%x, %m)               →
    %e = tile.map exp(%d)
    %s = tile.reduce sum %e axis 0

    A thread knows the exponentials seen from the largest element that it has itself. What it exchanges is that one and
    its sum; then it scales what it has to the maximum of all.
    """

    name: ClassVar[str] = "fuse_online_softmax"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in list(kernel.walk()):
            if isinstance(op, tile.ReduceOp) and op.kind.data == "max" and (found := _parts(op)) is not None:
                _replace(op, *found)


def _parts(largest: tile.ReduceOp) -> tuple[tile.MapOp, tile.MapOp, tile.ReduceOp] | None:
    """The difference, its exponentials and their sum."""
    type_ = tile.tile_type(largest.value)
    if type_.dtype != f32 or type_.sizes[largest.axis.value.data] < _LEAST:
        return None
    for shift in users_of(largest.out):
        if not isinstance(shift, tile.MapOp) or shift.function.data != "sub" or list(shift.args) != _pair(largest):
            continue
        powers = [op for op in users_of(shift.out) if isinstance(op, tile.MapOp) and op.function.data == "exp"]
        if len(users_of(shift.out)) != 1 or not powers:
            continue
        for total in users_of(powers[0].out):
            if isinstance(total, tile.ReduceOp) and total.kind.data == "sum" and total.axis == largest.axis:
                same = {op.parent_block() for op in (largest, shift, powers[0], total)}
                return (shift, powers[0], total) if len(same) == 1 else None
    return None


def _pair(largest: tile.ReduceOp) -> list[SSAValue]:
    return [largest.value, largest.out]


def _replace(largest: tile.ReduceOp, shift: tile.MapOp, powers: tile.MapOp, total: tile.ReduceOp) -> None:
    block = largest.parent_block()
    assert block is not None
    made = OnlineSoftmaxOp.make(largest)
    block.insert_op_before(made, largest)
    powers.out.replace_all_uses_with(made.powers)
    total.out.replace_all_uses_with(made.sum)
    largest.out.replace_all_uses_with(made.largest)
    for op in (total, powers, shift, largest):
        op.detach()
        op.erase()
