"""Products that are rounded to halves: where a processor has arithmetic of halves, LLVM may not fuse them with a sum.

h = cast(a * b, f16);  h + c     left free to contract, LLVM makes this one instruction, which does not round a * b
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.types import f16
from weft.tile import dialect as tile


def meets_a_rounding(op: tile.MapOp) -> bool:
    """Whether an op is a product that is rounded to halves, or a sum or difference of one."""
    if op.function.data == "mul":
        return any(_rounded_to_half(use.operation) is not None for use in op.out.uses)
    if op.function.data in ("add", "sub"):
        return any(_is_product(_rounded_to_half(arg.owner)) for arg in op.args)
    return False


def _rounded_to_half(op: Operation | Block) -> SSAValue | None:
    """What an op rounds to a half, if it does that."""
    if not isinstance(op, tile.MapOp) or op.function.data != "cast":
        return None
    return op.args[0] if from_attribute(op.attributes["target"]) == f16 else None


def _is_product(value: SSAValue | None) -> bool:
    return value is not None and isinstance(value.owner, tile.MapOp) and value.owner.function.data == "mul"
