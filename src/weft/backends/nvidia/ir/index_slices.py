"""What an index is computed from: the scalar ops that a role must repeat to have it too."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile

_SCALAR = (tile.ConstantOp, tile.PositionOp, tile.MapOp, tile.NumberOp, collective_ops.ViewOp, pointer_ops.IndexOp)


def ops_behind(values: Iterable[SSAValue]) -> set[Operation] | None:
    """The ops that values are computed by; None where one is neither made of sizes, programs' numbers, scalars that the
    kernel takes and loops' variables, nor one of these."""
    found: set[Operation] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, BlockArgument):
            if isinstance(value.owner.parent_op(), tile.KernelOp) or value.index == 0:
                continue
            return None
        assert isinstance(value, OpResult)
        op = value.op
        if isinstance(op, tile.ProgramOp) or op in found:
            continue
        if not isinstance(op, _SCALAR) or any(isinstance(r.type, tile.TileType) and r.type.sizes for r in op.results):
            return None
        found.add(op)
        left += op.operands
    return found
