"""Dots of 8-bit floats, which the language widens first, as the tensor cores of Hopper take them: as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.types import DType, f16
from weft.tile import dialect as tile


@dataclass(frozen=True)
class NarrowOperands(KernelPass):
    """Dots of 8-bit floats, which the language widens first, as the tensor cores of Hopper take them: as they are.

    %a = tile.gather %x[%i]                               %a = tile.gather %x[%i]
    %w = tile.map cast(%a) {f8E5M2 to f16}         →      …
    %c = tile.dot %w, …                                   %c = tile.dot %a, …
    """

    name: ClassVar[str] = "narrow_operands"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in [op for op in kernel.walk() if isinstance(op, tile.DotOp)]:
            left, right = map(_narrow, (op.a, op.b))
            if left is not None and right is not None:
                op.operands = [left, right, *op.operands[2:]]
        for op in reversed(list(kernel.walk())):
            if isinstance(op, tile.MapOp) and not op.out.uses and _narrow(op.out) is not None:
                op.detach()
                op.erase()


def _narrow(value: SSAValue) -> SSAValue | None:
    """The 8-bit floats that a tile of 16-bit ones was made of."""
    op = value.op if isinstance(value, OpResult) else None
    if not isinstance(op, tile.MapOp) or op.function.data != "cast":
        return None
    source, target = (from_attribute(op.attributes[name]) for name in ("source", "target"))
    assert isinstance(source, DType)
    return op.args[0] if source.is_float and source.bits == 8 and target == f16 else None
