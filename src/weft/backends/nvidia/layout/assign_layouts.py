"""Give every tile of a kernel a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import WIDEST, ComputedAccess, access_of, pointer_dtype
from weft.backends.nvidia.ir.cp_async import CpAsyncCommitOp, CpAsyncOp, CpAsyncWaitOp, StagedOp
from weft.backends.nvidia.ir.dialect import (
    ARGUMENTS,
    BLOCKS,
    VECTOR,
    WARPS,
    BarrierOp,
    ConvertOp,
    integer,
    layout_of,
    set_integer,
    set_layouts,
)
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.layouts import Layout, blocked, scalar_layout
from weft.backends.nvidia.ir.mma import PACKED, RAW, MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, RingToRegistersOp, SlotOp, TmaLoadOp, WaitOp
from weft.backends.nvidia.ir.tma_store import TmaStoreOp, TruncatePackOp
from weft.backends.nvidia.ir.view_layouts import demanded
from weft.backends.nvidia.ir.warp_specialization import (
    AffineApplyOp,
    BlockNumberOp,
    PingPongBarrierOp,
    WarpSpecializeOp,
)
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp, words_layout
from weft.backends.nvidia.layout.anchors import Anchors, anchors_of, covered_shape, squeezed
from weft.backends.nvidia.layout.control_flow_layouts import assign_written, carried_layouts, is_free_view
from weft.backends.nvidia.target import NvidiaTarget
from weft.errors import LoweringError
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile


@dataclass(frozen=True)
class AssignLayouts(KernelPass):
    """Give every tile of a kernel a layout.

    %x = tile.load …  : 4x1024               %x = tile.load … {nvidia.layouts = [4x1024: registers 8@1 4@1*256, …]}
    %m = tile.reduce max %x axis 1           %m = tile.reduce max %x axis 1 {nvidia.layouts = [4x1: …]}
    %d = tile.map sub(%x, %m)           →    %d = tile.map sub(%x, %m) {nvidia.layouts = [4x1024: …]}
    tile.store %t[…], %d     (transposed)    %c = nvidia.convert %d {nvidia.layouts = [4x1024: registers 4@0, …]}
                                             tile.store %t[…], %c

    Memory decides: each shape of a kernel has an *anchor*, the layout in which the accesses that move most bytes are
    coalesced. Tiles of smaller shapes that are broadcast against it take slices of it. What is computed follows its
    operands. Values that cost nothing (constants, positions and what is computed of these alone) are made again in each
    layout that someone wants; others are converted where they meet.
    """

    name: ClassVar[str] = "assign_layouts"
    decides: ClassVar[bool] = True

    clusters: bool = False
    """Whether blocks may be clusters, where the target has such."""
    converts: bool = True
    """Whether an access may ask for a layout of its own."""

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        return assign_layouts(kernel, clusters=self.clusters and target.has_clusters, converts=self.converts)


def assign_layouts(
    kernel: tile.KernelOp, *, clusters: bool = False, converts: bool = True, warps: int = 0, blocks: int = 0
) -> Refused | None:
    """Annotate a kernel in place, with so many warps and blocks where they are given."""
    for name, count in ((WARPS, warps), (BLOCKS, blocks)):
        if count:
            set_integer(kernel, name, count)
    anchors = anchors_of(kernel, clusters)
    anchors = replace(anchors, converts=converts and anchors.blocks == 1)
    assignment = Assignment(anchors)
    scalars = [value for value in kernel.block.args if isinstance(value.type, tile.TileType)]
    set_layouts(kernel, [scalar_layout(anchors.warps)] * len(scalars), ARGUMENTS)
    assignment.home.update(dict.fromkeys(scalars, scalar_layout(anchors.warps)))
    try:
        assignment.block(kernel.block)
    except LoweringError as error:  # an op has no layout beside those of this alternative: another may have one
        return Refused(error.message, error.hint)
    for op in reversed(list(kernel.walk())):  # what was made again elsewhere
        if _is_free(op) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    set_integer(kernel, WARPS, anchors.warps)
    if anchors.blocks > 1:
        set_integer(kernel, BLOCKS, anchors.blocks)
    return assignment.refused


@dataclass
class Assignment:
    """The walk through a kernel: `home` is where each value that costs something is."""

    anchors: Anchors
    home: dict[SSAValue, Layout] = field(default_factory=dict[SSAValue, Layout])
    made: dict[tuple[SSAValue, Layout], SSAValue] = field(default_factory=dict[tuple[SSAValue, Layout], SSAValue])
    refused: Refused | None = None
    """Why these layouts cannot be."""

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            self.visit(op)

    def visit(self, op: Operation) -> None:
        match op:
            case tile.DequantizeOp():
                self.home[op.out] = layout_of(op.out)
            case tile.LoadOp() if PACKED in op.attributes or RAW in op.attributes:
                self.home[op.out] = layout_of(op.out)
            case tile.LoadOp():
                self.settle(op, [self.anchors.coalesced(op)])
            case tile.StoreOp():
                home = self.home.get(op.value)
                keeps = home is not None and (_is_good(home, op) or not self.anchors.converts)
                whole = home if home is not None and keeps else self.anchors.coalesced(op)
                self.take(op, 0, whole.narrowed(tile.tile_type(op.value).sizes))
                set_layouts(op, [whole])
            case tile.ReduceOp():
                layout = self.natural(op.value)
                self.take(op, 0, layout)
                self.settle(op, [layout.sliced(op.axis.value.data)])
            case OnlineSoftmaxOp():
                layout = self.natural(op.value)
                self.take(op, 0, layout)
                sliced = layout.sliced(op.axis.value.data)
                self.settle(op, [layout, sliced, sliced])
            case MomentsOp():
                layout = self.natural(op.value)
                self.take(op, 0, layout)
                self.settle(op, [layout.sliced(op.axis.value.data)] * 2)
            case tile.AddExponentialsOp():  # each thread has a pair of its own
                pairs = self.anchors.of(tile.tile_type(op.largest).sizes)
                for number, layout in enumerate((pairs, pairs, self.natural(op.value))):
                    self.take(op, number, layout)
                self.settle(op, [pairs, pairs])
            case tile.DotOp():
                for number, operand in enumerate((op.a, op.b)):
                    self.take(op, number, self.natural(operand))
                layout = self.anchors.of(tile.tile_type(op.out).sizes)
                if op.accumulator is not None:
                    self.take(op, 2, layout)
                self.settle(op, [layout])
            case tile.GatherOp() | tile.ScatterOp() | pointer_ops.AtomicOp():
                self._computed(op)
            case tile.MapOp() if not self.is_free(op):
                layout = self._of_operands(op)
                for number, operand in enumerate(op.operands):
                    self.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
                self.settle(op, [layout])
            case tile.ForOp():
                self._loop(op)
            case tile.YieldOp() | tile.ReturnOp() | tile.ProgramOp() | tile.NumberOp():
                pass
            case WarpSpecializeOp():
                for block in (*op.producers, op.consumer.block):
                    self.block(block)
            case WgmmaOp():
                layout = self.anchors.of(tile.tile_type(op.out).sizes)
                if isinstance(op.a.type, tile.TileType):
                    self.take(op, 0, self.anchors.of(op.a.type.sizes))
                if op.accumulator is not None:
                    self.take(op, 2, layout)
                self.settle(op, [layout])
            case RingToRegistersOp():
                self.settle(op, [self.anchors.of(tile.tile_type(op.out).sizes)])
            case WgmmaWaitOp():
                self.settle(op, [self.natural(value) for value in op.values])
            case TruncatePackOp():
                layout = self.anchors.of(tile.tile_type(op.value).sizes)
                self.take(op, 0, layout)
                self.settle(op, [words_layout(layout)])
            case TmaStoreOp():
                pass
            case PackOp():
                self.home[op.out] = layout_of(op.out)
                self.take(op, 0, layout_of(op.out))
            case MmaOp():
                self.home[op.out] = layout_of(op.out)
                if op.accumulator is not None:
                    self.take(op, 2, layout_of(op.out))
            case SqueezeOp():
                layout = self.natural(op.value)
                self.take(op, 0, layout)
                self.settle(op, [squeezed(layout)])
            case CpAsyncOp():
                self._copied(op)
            case CpAsyncCommitOp() | CpAsyncWaitOp() | StagedOp() | BarrierOp():
                pass
            case (
                BlockNumberOp()
                | AffineApplyOp()
                | SlotOp()
                | AcquireOp()
                | TmaLoadOp()
                | CommitOp()
                | WaitOp()
                | ReleaseOp()
            ):
                pass
            case PingPongBarrierOp() | HorizontalSelectOp():
                pass
            case _ if self.is_free(op):
                pass
            case _:
                assign_written(self, op)

    def _computed(self, op: ComputedAccess) -> None:
        """Memory at computed indices: as is best for memory where places can be made there, else as its offsets are."""
        operands = [o for o in op.operands if isinstance(o.type, tile.TileType)]
        shape = _broadcast([tile.tile_type(o).sizes for o in operands])
        layout = self.home.get(op.offsets)
        if layout is None or layout.shape != shape:
            layout = self._beside_products(op) or self.anchors.computed(op, shape)
        set_integer(op, VECTOR, self.anchors.width(op, layout))
        for number, operand in enumerate(op.operands):
            if isinstance(operand.type, tile.TileType):
                self.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
        if op.results:
            self.settle(op, [layout])
        else:
            set_layouts(op, [layout])

    def _beside_products(self, op: ComputedAccess) -> Layout | None:
        """What is read for each row or column of a dot alone: threads read it where they have the dot."""
        uses = [use.operation for result in op.results for use in result.uses]
        views = [use for use in uses if isinstance(use, collective_ops.ViewOp)]
        if not self.anchors.of_products or not isinstance(op, tile.GatherOp) or not views or len(views) < len(uses):
            return None
        rank = len(tile.tile_type(op.out).sizes)
        if any(len(tile.tile_type(view.out).sizes) <= rank for view in views):
            return None
        wanted = {demanded(view, self.anchors.of(tile.tile_type(view.out).sizes)) for view in views}
        return wanted.pop() if len(wanted) == 1 else None

    def _copied(self, op: CpAsyncOp) -> None:
        """What threads copy: each some neighbours, and lanes side by side."""
        shape, inner = op.slot.sizes, op.slot.axis
        layout = blocked(shape, self.anchors.warps, (inner, 1 - inner), integer(op, VECTOR, 1))
        for number, operand in enumerate(op.operands):
            if isinstance(operand.type, tile.TileType):
                self.take(op, number, layout)
        set_layouts(op, [layout])

    def _of_operands(self, op: tile.MapOp) -> Layout:
        shape = tile.tile_type(op.out).sizes
        homes = [self.home[o] for o in op.operands if o in self.home and tile.tile_type(o).sizes == shape]
        anchor = self.anchors.of(shape)
        return anchor if not homes or anchor in homes else homes[0]

    def _loop(self, op: tile.ForOp) -> None:
        carried = op.block.args[1:]
        last = op.block.last_op
        assert last is not None
        layouts = carried_layouts(self, list(op.initial), list(last.operands))
        for number, (argument, layout) in enumerate(zip(carried, layouts, strict=True)):
            self.take(op, len(op.indices) + number, layout)
            self.home[argument] = layout
        set_layouts(op, layouts, ARGUMENTS)
        self.settle(op, layouts)
        self.block(op.block)
        for number, layout in enumerate(layouts):
            self.take(last, number, layout)

    # -- values ------------------------------------------------------------------------------------------------------

    def is_free(self, op: Operation) -> bool:
        """Whether an op's result costs nothing to make again."""
        if isinstance(op, collective_ops.ViewOp) and not is_free_view(op):
            return False
        # A scalar is in all threads: what is made of it costs nothing to have in any layout.
        return _is_free(op) and all(o not in self.home or not self.home[o].shape for o in op.operands)

    def natural(self, value: SSAValue) -> Layout:
        """Where a value is, or would best be."""
        return self.home.get(value) or self.anchors.of(tile.tile_type(value).sizes)

    def settle(self, op: Operation, layouts: Sequence[Layout]) -> None:
        set_layouts(op, layouts)
        self.home.update(zip(op.results, layouts, strict=True))

    def take(self, op: Operation, number: int, layout: Layout) -> None:
        """Let an operand of an op be in a layout."""
        op.operands[number] = self.wanted(op.operands[number], layout)

    def wanted(self, value: SSAValue, layout: Layout) -> SSAValue:
        if self.home.get(value) == layout:
            return value
        if (value, layout) not in self.made:
            new = self._converted(value, layout) if value in self.home else self._made_again(value, layout)
            self.made[value, layout] = new
            self.home[new] = layout
        return self.made[value, layout]

    def _converted(self, value: SSAValue, layout: Layout) -> SSAValue:
        shared = [mode for mode in self.home[value].blocks if mode.axis is not None]
        if shared and self.home[value].blocks != layout.blocks:
            self.refused = Refused(f"blocks of a cluster have parts of a tile, {self.home[value]}, and need {layout}")
            return value
        op = ConvertOp.make(value, layout)
        if isinstance(value, OpResult):
            block = value.op.parent_block()
            assert block is not None
            block.insert_op_after(op, value.op)
        else:
            block = value.owner
            assert isinstance(block, Block)
            block.insert_ops_before([op], block.first_op) if block.first_op else block.add_op(op)
        return op.out

    def _made_again(self, value: SSAValue, layout: Layout) -> SSAValue:
        assert isinstance(value, OpResult)
        new = value.op.clone()
        for number, operand in enumerate(value.op.operands):
            if isinstance(operand.type, tile.TileType):
                if isinstance(value.op, collective_ops.ViewOp):
                    wanted = demanded(value.op, layout)
                    assert wanted is not None
                else:
                    wanted = layout.narrowed(tile.tile_type(operand).sizes)
                new.operands[number] = self.wanted(operand, wanted)
        set_layouts(new, [layout])
        block = value.op.parent_block()
        assert block is not None
        block.insert_op_after(new, value.op)
        return new.results[0]


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


def _is_free(op: Operation) -> bool:
    return isinstance(op, tile.ConstantOp | tile.PositionOp | tile.MapOp | collective_ops.ViewOp)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(sides) for sides in zip(*shapes, strict=True))
