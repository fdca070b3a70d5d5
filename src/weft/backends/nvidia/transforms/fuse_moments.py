"""Find a row's sum and the squares of what its elements differ from their mean together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.ir.fused_reductions import MomentsOp
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.operations import users_of
from weft.ir.types import f32
from weft.tile import dialect as tile

_LEAST = 2048
"""Elements of a row from which on several warps share it, and an exchange costs more than some arithmetic."""


@dataclass(frozen=True)
class FuseMoments(KernelPass):
    """Find a row's sum and the squares of what its elements differ from their mean together: threads exchange once.

    %s = tile.reduce sum %x axis 0                %s, %v = nvidia.moments %x axis 0
    %m = tile.map mul(%s, 1 / n)            →     %m = tile.map mul(%s, 1 / n)
    %d = tile.map sub(%x, %m)                     %d = tile.map sub(%x, %m)
    %q = tile.map mul(%d, %d)
    %v = tile.reduce sum %q axis 0

    A thread knows the mean of what it has itself, and the squares from there. Two such with their counts make one of
    both (Chan, Golub and LeVeque): no digits are lost to a mean that is large, as they are by sums of squares.
    """

    name: ClassVar[str] = "fuse_moments"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in list(kernel.walk()):
            if isinstance(op, tile.ReduceOp) and op.kind.data == "sum" and (found := _squares(op)) is not None:
                block = op.parent_block()
                assert block is not None
                made = MomentsOp.make(op)
                block.insert_op_before(made, op)
                found.out.replace_all_uses_with(made.squares)
                op.out.replace_all_uses_with(made.total)
                for old in (found, op):
                    old.detach()
                    old.erase()


def _squares(total: tile.ReduceOp) -> tile.ReduceOp | None:
    """The sum of the squares of what elements differ from the mean."""
    type_ = tile.tile_type(total.value)
    count = type_.sizes[total.axis.value.data]
    if type_.dtype != f32 or count < _LEAST:
        return None
    means = [op.out for op in users_of(total.out) if isinstance(op, tile.MapOp) and _is_mean(op, total.out, count)]
    shifts = [op for mean in means for op in users_of(mean) if _is_map(op, "sub", [total.value, mean])]
    squares = [
        op for shift in shifts for op in users_of(shift.results[0]) if _is_map(op, "mul", [shift.results[0]] * 2)
    ]
    for square in squares:
        for found in users_of(square.results[0]):
            if not isinstance(found, tile.ReduceOp) or found.kind.data != "sum" or found.axis != total.axis:
                continue
            if found.parent_block() is total.parent_block():
                return found
    return None


def _is_mean(op: tile.MapOp, total: SSAValue, count: int) -> bool:
    """Whether a sum is divided by the number of its elements."""
    others = [arg.owner for arg in op.args if arg is not total]
    if op.function.data not in ("mul", "div") or op.args[0] is not total or len(others) != 1:
        return False
    number = from_attribute(others[0].value) if isinstance(others[0], tile.ConstantOp) else None
    if not isinstance(number, int | float):
        return False
    return abs((number if op.function.data == "mul" else 1 / number if number else 0) * count - 1) < 1e-6


def _is_map(op: Operation, function: str, args: list[SSAValue]) -> bool:
    return isinstance(op, tile.MapOp) and op.function.data == function and list(op.args) == args
