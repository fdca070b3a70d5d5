"""Layouts of accesses to memory: where lanes side by side move neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.nvidia.ir import rings, row_streams
from weft.backends.nvidia.ir.alignment import WIDEST, ComputedAccess, access_of, pointer_dtype
from weft.backends.nvidia.ir.cp_async import CpAsyncCommitOp, CpAsyncOp, CpAsyncWaitOp, StagedOp
from weft.backends.nvidia.ir.dialect import VECTOR, integer, layout_of, set_integer, set_layouts
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.layouts import Layout, blocked, scalar_layout
from weft.backends.nvidia.ir.local_memory import FenceAsyncSharedOp, LocalOperandOp, LocalStoreOp
from weft.backends.nvidia.ir.mma import PACKED, RAW
from weft.backends.nvidia.ir.rings import RewindOp, RingToRegistersOp
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.ir.tma_store import TmaStoreOp
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp
from weft.backends.nvidia.layout.anchors import covered_shape
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile


@LAYOUT_RULES.register(tile.LoadOp)
def lay_out_load(a: Assignment, op: tile.LoadOp) -> None:
    if PACKED in op.attributes or RAW in op.attributes:  # a dot has said where
        a.home[op.out] = layout_of(op.out)
    elif op.out.uses and all(isinstance(use.operation, LocalStoreOp) for use in op.out.uses):
        a.settle(op, [a.anchors.staged(op)])
    else:
        a.settle(op, [a.anchors.coalesced(op)])


@LAYOUT_RULES.register(tile.StoreOp)
def lay_out_store(a: Assignment, op: tile.StoreOp) -> None:
    home = a.home.get(op.value)
    keeps = home is not None and (_is_good(home, op) or not a.anchors.converts)
    whole = home if home is not None and keeps else a.anchors.coalesced(op)
    a.take(op, 0, whole.narrowed(tile.tile_type(op.value).sizes))
    set_layouts(op, [whole])


def _is_good(layout: Layout, op: tile.StoreOp) -> bool:
    """Whether neighbouring lanes write at least 16 bytes side by side: then a conversion would not pay."""
    shape = covered_shape(op)
    access = access_of(op, shape)
    if layout.shape != shape or access.axis is None:
        return False
    run = layout.vector.size if layout.vector.axis == access.axis else 1
    first = layout.lanes[0] if layout.lanes else None
    if first is not None and first.axis == access.axis and first.step == run:
        run *= first.size
    return run * pointer_dtype(op).bytes >= WIDEST and layout.vector.axis in (None, access.axis)


@LAYOUT_RULES.register(tile.GatherOp, tile.ScatterOp, pointer_ops.AtomicOp)
def lay_out_computed(a: Assignment, op: ComputedAccess) -> None:
    """Memory at computed indices: as is best for memory where places can be made there, else as its offsets are."""
    operands = [o for o in op.operands if isinstance(o.type, tile.TileType)]
    shape = _broadcast([tile.tile_type(o).sizes for o in operands])
    layout = a.home.get(op.offsets)
    if layout is None or layout.shape != shape:
        layout = _beside_products(a, op) or a.anchors.computed(op, shape)
    set_integer(op, VECTOR, a.anchors.width(op, layout))
    for number, operand in enumerate(op.operands):
        if isinstance(operand.type, tile.TileType):
            a.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
    if op.results:
        a.settle(op, [layout])
    else:
        set_layouts(op, [layout])


def _beside_products(a: Assignment, op: ComputedAccess) -> Layout | None:
    """What is read for each row or column of a dot alone: threads read it where they have the dot."""
    uses = [use.operation for result in op.results for use in result.uses]
    views = [use for use in uses if isinstance(use, collective_ops.ViewOp)]
    if not a.anchors.of_products or not isinstance(op, tile.GatherOp) or not views or len(views) < len(uses):
        return None
    rank = len(tile.tile_type(op.out).sizes)
    if any(len(tile.tile_type(view.out).sizes) <= rank for view in views):
        return None
    wanted = {demanded(view, a.anchors.of(tile.tile_type(view.out).sizes)) for view in views}
    return wanted.pop() if len(wanted) == 1 else None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(sides) for sides in zip(*shapes, strict=True))


@LAYOUT_RULES.register(CpAsyncOp)
def lay_out_cp_async(a: Assignment, op: CpAsyncOp) -> None:
    """What threads copy: each some neighbours, and lanes side by side."""
    shape, inner = op.slot.sizes, op.slot.axis
    layout = blocked(shape, a.anchors.warps, (inner, 1 - inner), integer(op, VECTOR, 1))
    for number, operand in enumerate(op.operands):
        if isinstance(operand.type, tile.TileType):
            a.take(op, number, layout)
    set_layouts(op, [layout])


@LAYOUT_RULES.register(LocalStoreOp)
def lay_out_local_store(a: Assignment, op: LocalStoreOp) -> None:
    """What threads stage, as they have it."""
    layout = a.natural(op.value)
    a.take(op, 0, layout)
    set_layouts(op, [layout])


@LAYOUT_RULES.register(pointer_ops.IndexOp, pointer_ops.PointerOp)
def lay_out_scalar_use(a: Assignment, op: pointer_ops.IndexOp | pointer_ops.PointerOp) -> None:
    a.take(op, 0, scalar_layout(a.anchors.warps))


@LAYOUT_RULES.register(pointer_ops.AddressOp)
def lay_out_address(a: Assignment, op: pointer_ops.AddressOp) -> None:
    a.settle(op, [scalar_layout(a.anchors.warps)])


LAYOUT_RULES.nothing_for(
    "it makes no tile", tile.ProgramOp, tile.NumberOp, BlockNumberOp, AffineApplyOp, HorizontalSelectOp
)
LAYOUT_RULES.nothing_for(
    "it is about stages in shared memory",
    *(op for op in rings.OPS if op not in (RingToRegistersOp, RewindOp)),
    CpAsyncCommitOp,
    CpAsyncWaitOp,
    StagedOp,
    FenceAsyncSharedOp,
    LocalOperandOp,
)
LAYOUT_RULES.nothing_for("the words that it writes are in a layout already", TmaStoreOp)
LAYOUT_RULES.never_for("rows are streamed when layouts are known", *row_streams.OPS, RewindOp)
LAYOUT_RULES.never_for("kernels of one block are made of kernels that have layouts", ScratchOp)
