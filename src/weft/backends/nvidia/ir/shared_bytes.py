"""The shared memory that the ops need which kernels are written with."""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation

from weft.backends.nvidia.emit.block import register_bytes
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.tile import collective_ops, control_flow
from weft.tile import dialect as tile
from weft.tile import pointer_ops as written


def written_bytes(op: Operation) -> int:
    """The shared memory that an op needs while it runs."""
    match op:
        case collective_ops.ViewOp():
            return 0 if stays_in_registers(op) else _tile_bytes(op.value)
        case collective_ops.TakeOp():
            return _tile_bytes(op.value)
        case collective_ops.FoldOp() | collective_ops.ScanOp():
            layout, axis = layout_of(op.values[0]), op.axis.value.data
            if not any(mode.axis == axis for mode in layout.warps):
                return 0
            size = sum(register_bytes(tile.tile_type(value).dtype) for value in op.values)
            size += 1 if layout.covered(axis) > layout.shape[axis] else 0
            return size * WARP * layout.warp_count * layout.sliced(axis).count
        case collective_ops.OrderOp():
            layout, axis = layout_of(op.value), len(tile.tile_type(op.value).sizes) - 1
            crosses = any(mode.axis == axis for mode in layout.warps)
            return layout.threads * layout.count * max(4, tile.tile_type(op.value).dtype.bytes) if crosses else 0
        case collective_ops.HistogramOp():
            return 4 * tile.tile_type(op.out).sizes[0]
        case tile.GatherOp():
            return _tile_bytes(op.out) if is_awaited(op) else 0
        case written.AtomicOp():
            return _tile_bytes(op.out) if is_passed_on(op) else 0
        case tile.ScatterOp() if op.unordered is None:
            return prod(tile.tile_type(op.offsets).sizes) * (8 + register_bytes(tile.tile_type(op.value).dtype) + 1)
        case _:
            return 0


def stays_in_registers(op: collective_ops.ViewOp) -> bool:
    """Whether every thread has what its part of a view holds."""
    return demanded(op, layout_of(op.out)) == layout_of(op.value).merged()


def is_passed_on(op: written.AtomicOp) -> bool:
    """Whether threads that did not update an element have to be told what was there."""
    return bool(op.out.uses) and layout_of(op.out).has_repetition()


def is_awaited(op: tile.GatherOp) -> bool:
    """Whether a program may wait for a scalar that another one writes: threads that read it themselves, one after the
    other, could go different ways."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, control_flow.WhileOp):
        parent = parent.parent_op()
    return parent is not None and not tile.tile_type(op.out).sizes


def _tile_bytes(value: object) -> int:
    type_ = tile.tile_type(value)  # type: ignore[arg-type]
    return max(1, prod(type_.sizes)) * register_bytes(type_.dtype)
