"""The shared memory that the ops need which kernels are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from xdsl.ir import Operation

from weft.backends.nvidia.ir import cp_async, local_memory, rings, row_streams, wgmma
from weft.backends.nvidia.ir.dialect import BarrierOp, ConvertOp, layout_of
from weft.backends.nvidia.ir.fma_dot import dot_bytes
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp, Reduction
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.mma import MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.ir.tma_store import TmaStoreOp, TruncatePackOp
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.backends.nvidia.ir.warp_specialization import (
    AffineApplyOp,
    BlockNumberOp,
    PingPongBarrierOp,
    WarpSpecializeOp,
)
from weft.ir.types import DType
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

Bytes: TypeAlias = Callable[[Any], int]

SHARED_BYTES: OpInterface[Bytes] = OpInterface("shared memory")


def shared_bytes(op: Operation) -> int:
    """The shared memory that an op needs while it runs."""
    rule = SHARED_BYTES.rule_of(op)
    return 0 if rule is None else rule(op)


@SHARED_BYTES.register(ConvertOp)
def convert_bytes(op: ConvertOp) -> int:
    type_ = tile.tile_type(op.out)
    return prod(_padded(type_.sizes, register_bytes(type_.dtype))) * register_bytes(type_.dtype)


@SHARED_BYTES.register(tile.ReduceOp, OnlineSoftmaxOp, MomentsOp)
def reduce_bytes(op: Reduction) -> int:
    layout, axis = layout_of(op.value), op.axis.value.data
    if CROSSES in op.attributes or not crosses_warps(layout, axis):
        return 0
    return sum(part_bytes(op)) * WARP * layout.warp_count * layout.sliced(axis).count


@SHARED_BYTES.register(collective_ops.FoldOp, collective_ops.ScanOp)
def combine_bytes(op: collective_ops.FoldOp | collective_ops.ScanOp) -> int:
    layout, axis = layout_of(op.values[0]), op.axis.value.data
    if not any(mode.axis == axis for mode in layout.warps):
        return 0
    size = sum(register_bytes(tile.tile_type(value).dtype) for value in op.values)
    size += 1 if layout.covered(axis) > layout.shape[axis] else 0
    return size * WARP * layout.warp_count * layout.sliced(axis).count


@SHARED_BYTES.register(collective_ops.OrderOp)
def order_bytes(op: collective_ops.OrderOp) -> int:
    layout, axis = layout_of(op.value), len(tile.tile_type(op.value).sizes) - 1
    crosses = any(mode.axis == axis for mode in layout.warps)
    return layout.threads * layout.count * max(4, tile.tile_type(op.value).dtype.bytes) if crosses else 0


@SHARED_BYTES.register(collective_ops.HistogramOp)
def histogram_bytes(op: collective_ops.HistogramOp) -> int:
    return 4 * tile.tile_type(op.out).sizes[0]


@SHARED_BYTES.register(collective_ops.ViewOp)
def view_bytes(op: collective_ops.ViewOp) -> int:
    return 0 if stays_in_registers(op) else _tile_bytes(op.value)


@SHARED_BYTES.register(collective_ops.TakeOp)
def take_bytes(op: collective_ops.TakeOp) -> int:
    return _tile_bytes(op.value)


@SHARED_BYTES.register(tile.GatherOp)
def gather_bytes(op: tile.GatherOp) -> int:
    return _tile_bytes(op.out) if is_awaited(op) else 0


@SHARED_BYTES.register(tile.ScatterOp)
def scatter_bytes(op: tile.ScatterOp) -> int:
    if op.unordered is not None:
        return 0
    return prod(tile.tile_type(op.offsets).sizes) * (8 + register_bytes(tile.tile_type(op.value).dtype) + 1)


@SHARED_BYTES.register(pointer_ops.AtomicOp)
def atomic_bytes(op: pointer_ops.AtomicOp) -> int:
    return _tile_bytes(op.out) if is_passed_on(op) else 0


SHARED_BYTES.register(tile.DotOp)(dot_bytes)
SHARED_BYTES.nothing_for(
    "each thread has its own elements",
    tile.ConstantOp,
    tile.PositionOp,
    tile.MapOp,
    tile.LoadOp,
    tile.StoreOp,
    tile.AddExponentialsOp,
    tile.DequantizeOp,
    MmaOp,
    PackOp,
    SqueezeOp,
    TruncatePackOp,
    control_flow.CheckOp,
    control_flow.PrintOp,
)
SHARED_BYTES.nothing_for(
    "all threads have the same",
    tile.ProgramOp,
    tile.NumberOp,
    pointer_ops.IndexOp,
    pointer_ops.PointerOp,
    pointer_ops.AddressOp,
    BlockNumberOp,
    AffineApplyOp,
    HorizontalSelectOp,
)
SHARED_BYTES.nothing_for(
    "the ops in it need it",
    tile.KernelOp,
    tile.ForOp,
    control_flow.IfOp,
    control_flow.WhileOp,
    tile.YieldOp,
    tile.ReturnOp,
)
SHARED_BYTES.nothing_for(
    "rings and stages have their place in the launch",
    *rings.OPS,
    *row_streams.OPS,
    *cp_async.OPS,
    *local_memory.OPS,
    WarpSpecializeOp,
    *wgmma.OPS,
    TmaStoreOp,
)
SHARED_BYTES.nothing_for("it says itself where its memory begins", ScratchOp)
SHARED_BYTES.nothing_for("hardware has barriers of its own", BarrierOp, PingPongBarrierOp)
SHARED_BYTES.nothing_for("it has no code on a GPU", tile.SortOp)


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


def crossing_bytes(op: Operation) -> int:
    """What the blocks of a cluster hold of a reduction at once: a result of each warp of each of them."""
    assert isinstance(op, Reduction)
    layout = layout_of(op.value)
    return sum(sent_bytes(size) for size in part_bytes(op)) * layout.block_count * layout.warp_count


def part_bytes(op: Reduction) -> tuple[int, ...]:
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
