"""Where a value will be whose op has no layout yet: what loops carry is decided before their blocks are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.layouts import Layout, scalar_layout
from weft.backends.nvidia.ir.tma_store import TruncatePackOp
from weft.backends.nvidia.ir.view_layouts import in_order, renamed
from weft.backends.nvidia.ir.wgmma import words_layout
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.layout.assignment import Assignment


def carried_layouts(a: Assignment, initial: list[SSAValue], yielded: list[SSAValue]) -> list[Layout]:
    """Where a loop carries its values: as an iteration leaves them, so that nothing moves from iteration to
    iteration.
    """
    return [predicted(a, end) or a.natural(start) for start, end in zip(initial, yielded, strict=True)]


def predicted(a: Assignment, value: SSAValue, depth: int = 64) -> Layout | None:
    """Where a value will be whose op has no layout yet; None where nothing says so."""
    if value in a.home or not depth or not isinstance(value, OpResult):
        return a.home.get(value)
    op, shape = value.op, tile.tile_type(value).sizes
    if not shape:
        return scalar_layout(a.anchors.warps)
    match op:
        case tile.LoadOp():
            return a.anchors.coalesced(op)
        case tile.GatherOp():
            return a.anchors.of(shape)
        case tile.ReduceOp() | MomentsOp() | collective_ops.FoldOp():
            source = op.operands[0]
            found = predicted(a, source, depth - 1) or a.anchors.of(tile.tile_type(source).sizes)
            return found.sliced(op.axis.value.data)
        case OnlineSoftmaxOp():
            found = predicted(a, op.value, depth - 1) or a.anchors.of(tile.tile_type(op.value).sizes)
            return found if shape == found.shape else found.sliced(op.axis.value.data)
        case collective_ops.ScanOp():
            return in_order(shape, op.axis.value.data, a.anchors.warps)
        case collective_ops.ViewOp():
            found = predicted(a, op.value, depth - 1)
            if found is None or not found.shape:  # what is made of a scalar is wherever it is wanted
                return None
            return renamed(op, found) or a.anchors.of(shape)
        case TruncatePackOp():
            return words_layout(a.anchors.of(tile.tile_type(op.value).sizes))
        case tile.MapOp():
            found = [predicted(a, arg, depth - 1) for arg in op.args if tile.tile_type(arg).sizes == shape]
            known = [layout for layout in found if layout is not None]
            anchor = a.anchors.of(shape)
            return anchor if anchor in known else known[0] if known else None
        case _:
            return None
