"""Anchors: the layouts that a kernel's memory accesses ask for, and how many warps and blocks a program takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.ir.alignment import WIDEST, Access, ComputedAccess, access_of, computed_access, pointer_dtype
from weft.backends.nvidia.ir.dialect import BLOCKS, WARPS, integer, layout_of
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp, Reduction
from weft.backends.nvidia.ir.layouts import WARP, Layout, blocked, next_power_of_two
from weft.backends.nvidia.ir.mma import PACKED, RAW, MmaOp, PackOp
from weft.backends.nvidia.ir.op_facts import depends_on_program
from weft.backends.nvidia.ir.wgmma import WgmmaOp, accumulator_layout
from weft.ir.expr import product
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.axis_facts import AxisFacts
from weft.tile.memory_groups import MemoryGroups

_PER_THREAD, _HELD_PER_THREAD = 16, 32
"""Elements of its largest tile that a thread has: more where they are held from a reduction to what follows it."""
_MOST_WARPS, _MOST_BLOCKS = 32, 8
_MOST_OF_BLOCK = 16384
"""Elements of a tile that one block holds; more are held by a cluster."""
_MANY_WARPS, _THREADS_BESIDE = 8, 1024
"""Of a block from which on few fit a multiprocessor, and the threads that it should have then."""
_THREADS_OF_SHORT_ROWS = 1280
"""The same where a thread holds 16 elements of one row: it does with 48 registers."""
_CHUNK = 8
"""Elements of 16 bits that a thread moves at once."""
_MOST_HELD, _FEW_WORDS = 64, 16
"""Elements of a tile with which a thread does in the registers that the assembler chooses, and the words that it reads
with which it does in 32."""
ASSEMBLERS_CHOICE = 0
"""Blocks beside each other, where the assembler weighs them against registers: if one is asked for, it takes all."""
_LIGHT = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "abs", "max", "min", "fmax", "fmin", "select", "cast", "bitcast", "not"),
        *("and", "or", "xor", "shl", "shr", "floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le", "gt", "ge"),
        *("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "truncdiv", "floordiv", "remainder"),
    )
)
"""Functions that do with few registers."""
_WORTH = 8
"""Elements side by side from which on a way through shared memory pays."""


@dataclass
class Anchors:
    """The layouts that memory accesses ask for, one for each shape that is not a part of another."""

    warps: int
    blocks: int
    layouts: dict[tuple[int, ...], Layout]
    facts: AxisFacts
    converts: bool = True
    """Whether tiles may be turned through shared memory, so that each access is coalesced: not what blocks of a cluster
    have parts of."""
    of_products: bool = False
    """Whether the tensor cores of Hopper say where the largest tiles are."""

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
        return self._along(access, shape)

    def staged(self, op: tile.LoadOp) -> Layout:
        """The layout of a load that goes to shared memory as it is: nothing but memory says where it is best."""
        shape = covered_shape(op)
        access = access_of(op, shape)
        return self.of(shape) if access.axis is None else self._along(access, shape)

    def _along(self, access: Access, shape: tuple[int, ...]) -> Layout:
        order = [axis for axis in _row_major(shape) if axis != access.axis]
        order = order if access.axis is None else [access.axis, *order]
        return blocked(shape, self.warps, order, min(access.vector, _fair(shape, self.warps)))

    def computed(self, op: ComputedAccess, shape: tuple[int, ...]) -> Layout:
        """The same for an access to computed places."""
        layout, access = self.of(shape), computed_access(self.facts, op)
        along = layout.lanes[0].axis if layout.lanes else None
        if self.blocks > 1 or access.axis in (None, along) or along is None or shape[access.axis] < _WORTH:
            return layout
        order = [access.axis, *(axis for axis in _row_major(shape) if axis != access.axis)]
        return blocked(shape, self.warps, order, min(access.widths[access.axis], _fair(shape, self.warps)))

    def width(self, op: ComputedAccess, layout: Layout) -> int:
        """How many neighbours of a thread an access to computed places moves at once."""
        axis = layout.vector.axis
        if axis is None or isinstance(op, pointer_ops.AtomicOp):
            return 1
        return min(layout.neighbours, computed_access(self.facts, op).widths[axis])


def _is_part(shape: Sequence[int], whole: Sequence[int]) -> bool:
    return len(shape) == len(whole) and all(n in (1, m) for n, m in zip(shape, whole, strict=True))


def _row_major(shape: Sequence[int]) -> list[int]:
    return list(range(len(shape) - 1, -1, -1))


def anchors_of(kernel: tile.KernelOp, clusters: bool) -> Anchors:
    facts = AxisFacts(kernel, WIDEST if "schedule" in kernel.attributes else 1)
    ops = [op for op in kernel.walk() if not _is_operand(op)]
    accesses = [(op, covered_shape(op)) for op in ops if isinstance(op, tile.LoadOp | tile.StoreOp)]
    computed = [op for op in ops if isinstance(op, ComputedAccess)]
    shapes = {tile.tile_type(r).sizes for op in ops for r in op.results if isinstance(r.type, tile.TileType)}
    shapes |= {shape for _, shape in accesses}
    whole = sorted((s for s in shapes if not any(s != t and _is_part(s, t) for t in shapes)), key=prod, reverse=True)
    reduced = {op.axis.value.data for op in kernel.walk() if isinstance(op, Reduction)}
    warps, blocks = _of_pairs(ops) or integer(kernel, WARPS), integer(kernel, BLOCKS, 1)
    if not warps and kernel.persistent is not None:
        warps = kernel.persistent.value.data
        assert warps == next_power_of_two(warps), "reductions over warps go by the bits of their numbers"
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
        most_warps: dict[int, int] = {}
        if (
            order and kernel.persistent is not None
        ):  # sums of neighbours are carried: as many as the widest operand asks for
            side_by_side = warps // (1 if kernel.row_warps is None else kernel.row_warps.value.data)
            vector = _covering(shape[order[0]], side_by_side, min(vector, _of_widest(accesses, shape)))
            most_warps = {order[0]: side_by_side}
        warp_order = sorted(order, key=lambda axis: axis in reduced)
        layouts[shape] = blocked(shape, warps, order, vector, warp_order, blocks, most_warps)
    return Anchors(warps, blocks, layouts, facts, of_products=bool(products))


def _of_widest(accesses: Sequence[tuple[tile.LoadOp | tile.StoreOp, tuple[int, ...]]], shape: tuple[int, ...]) -> int:
    """How many neighbours of the widest elements that are read or written in a shape are moved at once."""
    return WIDEST // max((pointer_dtype(op).bytes for op, part in accesses if part == shape), default=1)


def _covering(columns: int, warps: int, vector: int) -> int:
    """The most neighbours with which so many warps have little beyond the last column; as given if there are none."""
    for each in (vector, vector // 2, vector // 4):
        unit = WARP * warps * max(each, 1)
        if -(-columns // unit) * unit * 15 <= columns * 16:
            return max(each, 1)
    return vector


def _is_operand(op: Operation) -> bool:
    """Whether an op's result is for the tensor cores alone, which say where it is."""
    return PACKED in op.attributes or RAW in op.attributes or isinstance(op, PackOp | tile.DequantizeOp)


def _of_pairs(ops: Sequence[Operation]) -> int:
    """The warps whose threads have one running pair each, where there are such pairs."""
    counts = [tile.tile_type(op.larger).sizes[0] for op in ops if isinstance(op, tile.AddExponentialsOp)]
    return counts[0] // WARP if counts else 0


def _products(ops: Sequence[Operation]) -> dict[tuple[int, ...], Layout]:
    """The layouts that the tensor cores leave dots in, and those of the sums over their first axis."""
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
    blocks = min(_MOST_BLOCKS, next_power_of_two(-(-elements // _MOST_OF_BLOCK))) if reduces and clusters else 1
    each = _HELD_PER_THREAD if reduces else _PER_THREAD
    elements = -(-elements // blocks)
    warps = min(_MOST_WARPS, next_power_of_two(-(-elements // (each * WARP))))
    # Each takes whole chunks: half as many threads with some more of them may have less beyond the end.
    if reduces and warps > 1 and _covered(elements, warps // 2) * 8 <= _covered(elements, warps) * 7:
        warps //= 2
    return warps, blocks


def _covered(elements: int, warps: int) -> int:
    """The elements that so many warps have places for, a chunk of them in each thread at a time."""
    return -(-elements // (warps * WARP * _CHUNK)) * warps * WARP * _CHUNK


def _may_cluster(kernel: tile.KernelOp, clusters: bool) -> bool:
    """Whether blocks of a cluster can share a program: nothing in it goes through the memory of one block alone."""
    simple = (tile.LoadOp, tile.StoreOp, tile.MapOp, tile.ReduceOp, tile.ConstantOp, tile.PositionOp, tile.GatherOp)
    flat = (*simple, OnlineSoftmaxOp, MomentsOp, tile.ProgramOp, tile.ReturnOp)
    return clusters and all(isinstance(op, flat) for op in kernel.block.ops)


def blocks_beside(kernel: tile.KernelOp, multiprocessors: int) -> int:
    """How many blocks a multiprocessor should have registers for, where many threads hold a row of 16 bits; else 1, or
    what the assembler chooses for code that people write, if it carries no sums and turns no loops of reductions.

    While some wait for each other, others read or write. A thread that holds one row's part does with 64 registers; all
    programs that carry sums of columns stay at once.
    """
    if kernel.persistent is not None:
        programs = product(list(kernel.grid.data))
        return -(-programs // multiprocessors) if isinstance(programs, int) else 1
    if MemoryGroups.of_kernel(kernel).written:
        return _written_beside(kernel)
    warps, rows = integer(kernel, WARPS), list[tile.LoadOp]()
    reduces = any(isinstance(op, Reduction) for op in kernel.block.ops)
    for op in kernel.block.ops:
        if isinstance(op, tile.LoadOp) and layout_of(op.out).count > _CHUNK:
            if pointer_dtype(op).bytes != 2 or layout_of(op.out).count > _HELD_PER_THREAD:
                return 1
            rows += [] if isinstance(op.offset.data[0], int) else [op]
    return _THREADS_BESIDE // (warps * WARP) if reduces and warps >= _MANY_WARPS and len(rows) == 1 else 1


def _written_beside(kernel: tile.KernelOp) -> int:
    """The same for kernels that people write; those that hold several rows do with twice the registers."""
    warps, rows, words = integer(kernel, WARPS), set[SSAValue](), 0
    light = all(op.function.data in _LIGHT for op in kernel.walk() if isinstance(op, tile.MapOp))
    reduces = any(isinstance(op, tile.ReduceOp) for op in kernel.walk())
    largest = max((layout_of(op.out).count for op in kernel.walk() if isinstance(op, tile.GatherOp)), default=0)
    carries = any(isinstance(op, MmaOp | tile.DotOp) or (op.regions and op.results) for op in kernel.walk())
    plain = light and not carries and not (reduces and any(op.regions for op in kernel.block.ops))
    otherwise = ASSEMBLERS_CHOICE if plain and largest <= _MOST_HELD else 1
    for op in kernel.walk():
        if isinstance(op, tile.GatherOp):
            words += layout_of(op.out).count * pointer_dtype(op).bytes // 4
        if isinstance(op, tile.GatherOp) and layout_of(op.out).count > _CHUNK:
            if pointer_dtype(op).bytes != 2 or layout_of(op.out).count > _HELD_PER_THREAD:
                return otherwise
            rows |= {op.pointer} if depends_on_program([op.offsets]) else set()
    if plain and not reduces and warps == _MOST_WARPS and words <= _FEW_WORDS:
        return 2  # one of them reads while another one writes
    threads = _THREADS_BESIDE if len(rows) == 1 else _THREADS_BESIDE // 2
    if len(rows) == 1 and largest <= 2 * _CHUNK:
        threads = _THREADS_OF_SHORT_ROWS
    beside = max(1, threads // (warps * WARP)) if reduces and warps >= _MANY_WARPS and 1 <= len(rows) <= 4 else 1
    return beside if beside > 1 else otherwise


def covered_shape(op: tile.LoadOp | tile.StoreOp) -> tuple[int, ...]:
    """The capacities of an access: those of its tile, or more where a store spreads a value."""
    if isinstance(op, tile.LoadOp):
        return tile.tile_type(op.out).sizes
    if op.spread is not None:
        return tuple(int(size) for size in op.spread.data if isinstance(size, int))
    return tile.tile_type(op.value).sizes
