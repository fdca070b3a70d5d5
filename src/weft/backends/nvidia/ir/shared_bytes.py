"""The shared memory that the ops need which kernels are written with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation

from weft.backends.nvidia.ir.dialect import ConvertOp, layout_of
from weft.backends.nvidia.ir.fma_dot import dot_bytes
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.ir.types import DType
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS


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
        case pointer_ops.AtomicOp():
            return _tile_bytes(op.out) if is_passed_on(op) else 0
        case tile.ScatterOp() if op.unordered is None:
            return prod(tile.tile_type(op.offsets).sizes) * (8 + register_bytes(tile.tile_type(op.value).dtype) + 1)
        case _:
            return 0


def stays_in_registers(op: collective_ops.ViewOp) -> bool:
    """Whether every thread has what its part of a view holds."""
    return demanded(op, layout_of(op.out)) == layout_of(op.value).merged()


def is_passed_on(op: pointer_ops.AtomicOp) -> bool:
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


def register_bytes(dtype: DType) -> int:
    """The bytes that a value takes in shared memory: narrow floats are `float` in registers, booleans a byte."""
    if dtype.is_float:
        return max(dtype.bytes, 4)
    return dtype.bytes


def shared_bytes(op: Operation) -> int:
    """The shared memory that an op needs while it runs."""
    match op:
        case ConvertOp():
            type_ = tile.tile_type(op.out)
            return prod(_padded(type_.sizes, register_bytes(type_.dtype))) * register_bytes(type_.dtype)
        case tile.ReduceOp() | OnlineSoftmaxOp() | MomentsOp() if CROSSES not in op.attributes:
            layout = layout_of(op.value)
            if not crosses_warps(layout, op.axis.value.data):
                return 0
            return sum(part_bytes(op)) * WARP * layout.warp_count * layout.sliced(op.axis.value.data).count
        case tile.DotOp():
            return dot_bytes(op)
        case _:
            return written_bytes(op)


def crossing_bytes(op: Operation) -> int:
    """What the blocks of a cluster hold of a reduction at once: a result of each warp of each of them."""
    assert isinstance(op, tile.ReduceOp | OnlineSoftmaxOp | MomentsOp)
    layout = layout_of(op.value)
    return sum(sent_bytes(size) for size in part_bytes(op)) * layout.block_count * layout.warp_count


def part_bytes(op: tile.ReduceOp | OnlineSoftmaxOp | MomentsOp) -> tuple[int, ...]:
    """The bytes of what a reduction combines: a value, its position where that counts, or what goes together."""
    size = register_bytes(tile.tile_type(op.value).dtype)
    if isinstance(op, OnlineSoftmaxOp):
        return size, size
    if isinstance(op, MomentsOp):
        return size, size, size
    return (size, 8) if COMBINERS[op.kind.data].indexed else (size,)


def sent_bytes(size: int) -> int:
    """Blocks send each other words of 4 or 8 bytes."""
    return max(size, 4)


def crosses_warps(layout: Layout, axis: int) -> bool:
    """Whether elements along an axis are in different warps."""
    return any(mode.axis == axis for mode in (*layout.warps, *layout.blocks))


def _padded(sizes: Sequence[int], size: int) -> tuple[int, ...]:
    return (*sizes[:-1], row_pitch(sizes[-1], size)) if sizes else ()


def row_pitch(side: int, size: int) -> int:
    """The elements from one row of a tile in shared memory to the next: one more than it has, so that columns spread
    over the banks."""
    return side + max(1, 4 // size)
