"""Sums of a tile and a dot are dots with an accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile


@dataclass(frozen=True)
class FoldSums(KernelPass):
    """Sums of a tile and a dot are dots with an accumulator.

    %p = tile.dot %a, %b
    %s = tile.map add(%total, %p)      →      %s = tile.dot %a, %b, %total
    """

    name: ClassVar[str] = "fold_sums"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in list(kernel.walk()):
            if not isinstance(op, tile.MapOp) or op.function.data != "add":
                continue
            for number, value in enumerate(op.args):
                dot = value.op if isinstance(value, OpResult) else None
                total = op.args[1 - number]
                if not isinstance(dot, tile.DotOp) or dot.accumulator is not None or value.type != op.out.type:
                    continue
                if _is_byte(dot.a) or _is_byte(dot.b):
                    continue  # the tensor cores keep fewer digits of what they sum themselves
                if len(list(value.uses)) > 1 or total.type != value.type or dot.parent is not op.parent:
                    continue
                block = op.parent_block()
                assert block is not None
                folded = tile.DotOp.create(operands=[dot.a, dot.b, total], result_types=[op.out.type])
                block.insert_op_before(folded, op)
                op.out.replace_all_uses_with(folded.out)
                for old in (op, dot):
                    old.detach()
                    old.erase()
                break


def _is_byte(value: SSAValue) -> bool:
    """Whether a tile is read from memory of 8-bit floats."""
    if not isinstance(value, OpResult) or not isinstance(value.op, tile.LoadOp):
        return False
    dtype = pointer_dtype(value.op)
    return dtype.is_float and dtype.bytes == 1
