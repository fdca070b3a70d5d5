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

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.alignment import WIDEST, ComputedAccess, access_of, computed_access, pointer_dtype
from weft.backends.nvidia.asynchronous import (
    BlockNumberOp,
    FinishOp,
    IndexOp,
    ReleaseOp,
    RolesOp,
    SlotOp,
    WaitOp,
    WgmmaOp,
)
from weft.backends.nvidia.dialect import (
    ARGUMENTS,
    BLOCKS,
    VECTOR,
    WARPS,
    ConvertOp,
    integer,
    layout_of,
    set_integer,
    set_layouts,
)
from weft.backends.nvidia.layouts import WARP, Layout, blocked
from weft.backends.nvidia.mma import PACKED, MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.view_layouts import demanded
from weft.backends.nvidia.wgmma import accumulator_layout
from weft.backends.nvidia.written_layouts import assign_written, carried_layouts, is_free_view, scalar_layout
from weft.tile import dialect as tile
from weft.tile import written
from weft.tile.axis_facts import AxisFacts

_PER_THREAD, _HELD_PER_THREAD = 16, 32
"""Elements of its largest tile that a thread has: more where they are held from a reduction to what follows it."""
_MOST_WARPS, _MOST_BLOCKS = 32, 8
_MOST_OF_BLOCK = 16384
"""Elements of a tile that one block holds; more are held by a cluster."""
_WORTH = 8
"""Elements side by side from which on a way through shared memory pays."""


def assign_layouts(kernel: tile.KernelOp, clusters: bool = False, converts: bool = True) -> None:
    """Annotate a kernel in place; its blocks may be `clusters` where the target has such.

    Without `converts` no access asks for a layout of its own.
    """
    anchors = replace(_anchors(kernel, clusters), converts=converts)
    assignment = Assignment(anchors)
    scalars = [value for value in kernel.block.args if isinstance(value.type, tile.TileType)]
    set_layouts(kernel, [scalar_layout(anchors.warps)] * len(scalars), ARGUMENTS)
    assignment.home.update(dict.fromkeys(scalars, scalar_layout(anchors.warps)))
    assignment.block(kernel.block)
    for op in reversed(list(kernel.walk())):  # what was made again elsewhere
        if _is_free(op) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    set_integer(kernel, WARPS, anchors.warps)
    if anchors.blocks > 1:
        set_integer(kernel, BLOCKS, anchors.blocks)


@dataclass
class Anchors:
    """The layouts that memory accesses ask for, one for each shape that is not a part of another."""

    warps: int
    blocks: int
    layouts: dict[tuple[int, ...], Layout]
    facts: AxisFacts
    converts: bool = True
    """Whether tiles may be turned through shared memory, so that each access is coalesced."""

    def of(self, shape: tuple[int, ...]) -> Layout:
        """The layout of tiles of a shape: that of the largest tile it is broadcast against, or one of its own."""
        for whole, layout in self.layouts.items():
            if _is_part(shape, whole):
                return layout.narrowed(shape)
        return self.layouts.setdefault(shape, blocked(shape, self.warps, _row_major(shape), blocks=self.blocks))

    def coalesced(self, op: tile.LoadOp | tile.StoreOp) -> Layout:
        """The layout of an access: that of its shape, or one of its own where it runs along another axis."""
        shape = covered_shape(op)
        layout, access = self.of(shape), access_of(op, shape)
        along = layout.lanes[0].axis if layout.lanes else None
        if not self.converts or access.axis in (None, along) or along is None or shape[access.axis] < _WORTH:
            return layout
        order = [access.axis, *(axis for axis in _row_major(shape) if axis != access.axis)]
        return blocked(shape, self.warps, order, min(access.vector, _fair(shape, self.warps)), blocks=self.blocks)

    def computed(self, op: ComputedAccess, shape: tuple[int, ...]) -> Layout:
        """The same for an access to computed places."""
        layout, access = self.of(shape), computed_access(self.facts, op)
        along = layout.lanes[0].axis if layout.lanes else None
        if access.axis is None or along is None or access.axis == along or shape[access.axis] < _WORTH:
            return layout
        order = [access.axis, *(axis for axis in _row_major(shape) if axis != access.axis)]
        return blocked(shape, self.warps, order, min(access.widths[access.axis], _fair(shape, self.warps)))

    def width(self, op: ComputedAccess, layout: Layout) -> int:
        """How many neighbours of a thread an access to computed places moves at once."""
        axis = layout.vector.axis
        if axis is None or isinstance(op, written.AtomicOp):
            return 1
        return min(layout.vector.size, computed_access(self.facts, op).widths[axis])


def _is_part(shape: Sequence[int], whole: Sequence[int]) -> bool:
    return len(shape) == len(whole) and all(n in (1, m) for n, m in zip(shape, whole, strict=True))


def _row_major(shape: Sequence[int]) -> list[int]:
    return list(range(len(shape) - 1, -1, -1))


def _anchors(kernel: tile.KernelOp, clusters: bool) -> Anchors:
    facts = AxisFacts(kernel, WIDEST if "schedule" in kernel.attributes else 1)
    ops = [op for op in kernel.walk() if PACKED not in op.attributes and not isinstance(op, PackOp)]
    accesses = [(op, covered_shape(op)) for op in ops if isinstance(op, tile.LoadOp | tile.StoreOp)]
    computed = [op for op in ops if isinstance(op, ComputedAccess)]
    shapes = {tile.tile_type(r).sizes for op in ops for r in op.results if isinstance(r.type, tile.TileType)}
    shapes |= {shape for _, shape in accesses}
    whole = sorted((s for s in shapes if not any(s != t and _is_part(s, t) for t in shapes)), key=prod, reverse=True)
    reduced = {op.axis.value.data for op in kernel.walk() if isinstance(op, tile.ReduceOp)}
    warps, blocks = integer(kernel, WARPS), integer(kernel, BLOCKS, 1)
    if not warps:
        warps, blocks = _size_of_program(prod(whole[0]) if whole else 1, bool(reduced), _may_cluster(kernel, clusters))
    products = [value for op in kernel.walk() if isinstance(op, WgmmaOp) for value in (op.out, op.a)]
    layouts = {
        tile.tile_type(value).sizes: accumulator_layout(tile.tile_type(value).sizes, warps // 4)
        for value in products
        if isinstance(value.type, tile.TileType)
    }
    layouts |= _products(ops)
    for shape in whole:
        if shape in layouts:
            continue
        bytes_along: dict[int, int] = {}
        vectors: dict[int, int] = {}
        for op, part in accesses:
            found = access_of(op, part)
            if found.axis is not None and _is_part(part, shape):
                weight = prod(part) * pointer_dtype(op).bytes * min(found.vector, 4)
                bytes_along[found.axis] = bytes_along.get(found.axis, 0) + weight
                vectors[found.axis] = max(vectors.get(found.axis, 1), found.vector)
        for op in computed:
            part, found = tile.tile_type(op.offsets).sizes, computed_access(facts, op)
            if found.axis is not None and _is_part(part, shape):
                weight = prod(part) * pointer_dtype(op).bytes * min(found.widths[found.axis], 4)
                bytes_along[found.axis] = bytes_along.get(found.axis, 0) + weight
                vectors[found.axis] = max(vectors.get(found.axis, 1), found.widths[found.axis])
        order = sorted(_row_major(shape), key=lambda axis: -bytes_along.get(axis, 0))
        vector = min(vectors.get(order[0], 1), _fair(shape, warps)) if order else 1
        warp_order = sorted(order, key=lambda axis: axis in reduced)
        layouts[shape] = blocked(shape, warps, order, vector, warp_order, blocks)
    return Anchors(warps, blocks, layouts, facts)


def _products(ops: Sequence[Operation]) -> dict[tuple[int, ...], Layout]:
    """The layouts that the tensor cores leave products in, and those of the sums over their first axis."""
    found: dict[tuple[int, ...], Layout] = {}
    for op in ops:
        if isinstance(op, MmaOp):
            layout = layout_of(op.out)
            found.setdefault(layout.shape, layout)
            if layout.rank == 3:
                found.setdefault(layout.shape[1:], squeezed(layout.sliced(0)))
    return found


def squeezed(layout: Layout) -> Layout:
    """The layout of a tile without its first axis."""
    return layout.moved(layout.shape[1:], lambda axis: axis - 1)


def _fair(shape: Sequence[int], warps: int) -> int:
    """How many neighbours a thread may take while all threads have some."""
    share = max(1, prod(shape) // (warps * WARP))
    return 1 << (share.bit_length() - 1)


def _size_of_program(elements: int, reduces: bool, clusters: bool) -> tuple[int, int]:
    """How many warps a block takes whose program's largest tile has so many elements, and how many blocks."""
    blocks = min(_MOST_BLOCKS, _power_of_two(-(-elements // _MOST_OF_BLOCK))) if reduces and clusters else 1
    each = _HELD_PER_THREAD if reduces else _PER_THREAD
    warps = -(-elements // (each * WARP * blocks))
    return min(_MOST_WARPS, _power_of_two(warps)), blocks


def _may_cluster(kernel: tile.KernelOp, clusters: bool) -> bool:
    """Whether blocks of a cluster can share a program: nothing in it goes through the memory of one block alone."""
    simple = (tile.LoadOp, tile.StoreOp, tile.MapOp, tile.ReduceOp, tile.ConstantOp, tile.PositionOp, tile.GatherOp)
    flat = (*simple, tile.ProgramOp, tile.ReturnOp)
    return clusters and all(isinstance(op, flat) for op in kernel.block.ops)


def _power_of_two(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


def covered_shape(op: tile.LoadOp | tile.StoreOp) -> tuple[int, ...]:
    """The capacities of an access: those of its tile, or more where a store spreads a value."""
    if isinstance(op, tile.LoadOp):
        return tile.tile_type(op.out).sizes
    if op.spread is not None:
        return tuple(int(size) for size in op.spread.data if isinstance(size, int))
    return tile.tile_type(op.value).sizes


@dataclass
class Assignment:
    """The walk through a kernel: `home` is where each value that costs something is."""

    anchors: Anchors
    home: dict[SSAValue, Layout] = field(default_factory=dict[SSAValue, Layout])
    made: dict[tuple[SSAValue, Layout], SSAValue] = field(default_factory=dict[tuple[SSAValue, Layout], SSAValue])

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            self.visit(op)

    def visit(self, op: Operation) -> None:
        match op:
            case tile.LoadOp() if PACKED in op.attributes:
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
            case tile.DotOp():
                for number, operand in enumerate((op.a, op.b)):
                    self.take(op, number, self.natural(operand))
                layout = self.anchors.of(tile.tile_type(op.out).sizes)
                if op.accumulator is not None:
                    self.take(op, 2, layout)
                self.settle(op, [layout])
            case tile.GatherOp() | tile.ScatterOp() | written.AtomicOp():
                self._computed(op)
            case tile.MapOp() if not self.is_free(op):
                layout = self._of_operands(op)
                for number, operand in enumerate(op.operands):
                    self.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
                self.settle(op, [layout])
            case tile.ForOp():
                self._loop(op)
            case tile.YieldOp() | tile.ReturnOp() | tile.ProgramOp():
                pass
            case RolesOp():
                self.block(op.consumer.block)
            case WgmmaOp():
                layout = self.anchors.of(tile.tile_type(op.out).sizes)
                if isinstance(op.a.type, tile.TileType):
                    self.take(op, 0, self.anchors.of(op.a.type.sizes))
                if op.accumulator is not None:
                    self.take(op, 2, layout)
                self.settle(op, [layout])
            case FinishOp():
                self.settle(op, [self.natural(value) for value in op.values])
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
            case BlockNumberOp() | IndexOp() | SlotOp() | WaitOp() | ReleaseOp():
                pass
            case _ if self.is_free(op):
                pass
            case _:
                assign_written(self, op)

    def _computed(self, op: ComputedAccess) -> None:
        """Memory at computed places: as is best for memory where places can be made there, else as its offsets are."""
        operands = [o for o in op.operands if isinstance(o.type, tile.TileType)]
        shape = _broadcast([tile.tile_type(o).sizes for o in operands])
        layout = self.home.get(op.offsets)
        if layout is None or layout.shape != shape:
            layout = self.anchors.computed(op, shape)
        set_integer(op, VECTOR, self.anchors.width(op, layout))
        for number, operand in enumerate(op.operands):
            if isinstance(operand.type, tile.TileType):
                self.take(op, number, layout.narrowed(tile.tile_type(operand).sizes))
        if op.results:
            self.settle(op, [layout])
        else:
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
        if isinstance(op, written.ViewOp) and not is_free_view(op):
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
                if isinstance(value.op, written.ViewOp):
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
    return isinstance(op, tile.ConstantOp | tile.PositionOp | tile.MapOp | written.ViewOp)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(sides) for sides in zip(*shapes, strict=True))
