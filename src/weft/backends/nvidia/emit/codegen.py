"""Annotated tile kernels → LLVM functions for NVPTX: a program is a block of threads, a tile is registers of all.

Every tile value is a list of LLVM values in each thread, one for each register of its layout. What a layout has beyond
a tile's side, or beyond its extents at run time, is computed along and never written, nor counted by reductions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import emit_cast, load_convert, register_type
from weft.backends.llvm.values import V, i64, memory_type
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.emit import (
    control,
    convert_layout,
    elements,
    for_loops,
    horizontal_select,
    messages,
    scalars,
    views,
)
from weft.backends.nvidia.emit.block import Threads, i32, short
from weft.backends.nvidia.emit.common_bases import split_common_bases
from weft.backends.nvidia.emit.control import program_numbers, where_programs_are
from weft.backends.nvidia.emit.dot import fma_dot, mma_dot, wgmma_dot
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory import (
    atomics,
    cp_async,
    gather_scatter,
    local_memory,
    scratch,
    strided_memory,
    tma_load,
    tma_store,
)
from weft.backends.nvidia.emit.reduce import bitonic_sort, fold_scan, moments, online_softmax, reduce
from weft.backends.nvidia.emit.reduce.cluster_reduce import Crossing
from weft.backends.nvidia.emit.sink_to_uses import sink_to_uses
from weft.backends.nvidia.emit.warps import ring_ops, row_streams, warp_specialize
from weft.backends.nvidia.emit.warps.dynamic_tile_scheduler import DynamicTileScheduler
from weft.backends.nvidia.emit.warps.programmatic_launch import launch_dependents, wait_before_program
from weft.backends.nvidia.emit.warps.ring_buffers import Ring
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import APART, MAX_REGISTERS, RESIDENT, WARPS, integer, layout_of, layouts_of
from weft.backends.nvidia.ir.dialect import LAYOUTS as LAYOUTS_ATTRIBUTE
from weft.backends.nvidia.ir.extents import ConvertedLimits
from weft.backends.nvidia.ir.layouts import WARP, Layout, picked, scalar_layout
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.programmatic_launch import loop_that_asks_early, ops_behind_wait
from weft.backends.nvidia.ir.row_streams import StreamOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

FAMILIES = (
    scalars,
    elements,
    views,
    convert_layout,
    horizontal_select,
    strided_memory,
    gather_scatter,
    atomics,
    scratch,
    cp_async,
    local_memory,
    tma_load,
    tma_store,
    reduce,
    moments,
    online_softmax,
    fold_scan,
    bitonic_sort,
    fma_dot,
    mma_dot,
    wgmma_dot,
    control,
    for_loops,
    warp_specialize,
    ring_ops,
    row_streams,
    messages,
)
"""The modules with the emitters of ops, which register them as they are imported."""
_MOST_REGISTERS, _BLOCK_REGISTERS = 255, 65536
"""That a thread can have, and that all threads of a block have together."""
_MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'


class KernelCodegen:
    """Makes the function of one kernel."""

    def __init__(self, module: Module, kernel: tile.KernelOp, launch: Launch) -> None:
        self.module = module
        self.kernel = kernel
        self.launch = launch
        self.layouts = _all_layouts(kernel)
        self.is_plain = _is_plain(kernel)
        self.scalars: dict[SSAValue, V] = {}
        self.pointers: dict[SSAValue, V] = {}
        self.tiles: dict[SSAValue, list[V]] = {}
        self.slots: dict[SSAValue, V] = {}
        self.maps: list[V] = []
        self.made: set[SSAValue] = set()
        self.in_flight: dict[SSAValue, list[V]] = {}
        self.rings: list[Ring] = []
        self.kept: Ring | None = None
        self.drawing: DynamicTileScheduler | None = None
        self.crossing: Crossing | None = None
        self.limits = ConvertedLimits()
        self.late: list[Operation] = []

    def emit(self) -> None:
        kernel, arguments = self.kernel, self.kernel.block.args
        self.module.made_for(kernel.location)
        params = [(_parameter(argument), f"a{i}") for i, argument in enumerate(arguments)]
        maps = [(_MAP, f"m{i}") for i in range(len(self.launch.maps))]
        attributes = f'nounwind "nvvm.reqntid"="{self.launch.threads}"'
        registers = integer(kernel, MAX_REGISTERS)
        if registers and not any(isinstance(op, WarpSpecializeOp) for op in kernel.walk()):
            most = min(_MOST_REGISTERS, _BLOCK_REGISTERS // self.launch.threads // 8 * 8)
            attributes += f' "nvvm.maxnreg"="{min(registers, most)}"'
        elif resident := integer(kernel, RESIDENT, 1):
            attributes += f' "nvvm.minctasm"="{resident}"'
        if self.launch.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.launch.cluster}"'
        name, params_of_all = kernel.sym_name.data, [*params, *maps]
        self.b = b = Function(self.module, name, params_of_all, "void", attributes, "ptx_kernel", numbers_values=True)
        if self.launch.programmatic:
            launch_dependents(b, kernel, self.launch)
        self.maps = [b.emit("i64", f"ptrtoint {value} to i64") for value in b.args[len(params) :]]
        for argument, value in zip(arguments, b.args, strict=False):
            match argument.type:
                case tile.PointerType():
                    self.pointers[argument] = b.emit("i64", f"ptrtoint ptr addrspace(1) {value.name} to i64")
                case tile.TileType() as type_:
                    self.tiles[argument] = [_scalar_argument(b, value, type_.dtype)]
                case _:
                    self.scalars[argument] = value
        if not any(isinstance(op, WarpSpecializeOp | StreamOp) for op in kernel.block.ops):
            warps, cluster = self.launch.threads // WARP, self.launch.cluster
            self.threads = Threads.of_warp(b) if APART in kernel.attributes else Threads.of_block(b, warps, cluster)
            self.threads.prepare(self.layouts)
            self._place_program()
        self.early = loop_that_asks_early(kernel) if self.launch.programmatic and kernel.limit is None else None
        self.late = ops_behind_wait(kernel, self.early)
        roles = any(
            isinstance(op, StreamOp) or (isinstance(op, WarpSpecializeOp) and op.early) for op in kernel.block.ops
        )
        if self.launch.programmatic and not roles and self.early is None:
            wait_before_program(b, kernel, self.launch)
        with where_programs_are(self):
            self.block(kernel.block)
            self.threads.gather()
        b.lines = split_common_bases(b.lines)
        b.finish(order=sink_to_uses if self.is_plain else None)

    def _place_program(self) -> None:
        """Turn the block's number into one number an axis of the grid: all fit 32 bits, and so does their dot."""
        b = self.b
        sizes = [arg for arg in self.kernel.block.args if arg in self.scalars]
        symbols = {name: self.scalars[arg] for name, arg in zip(self.kernel.size_names, sizes, strict=True)}
        rest = b.call("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32")
        if self.launch.blocks_per_program > 1:
            rest = b.binary("udiv", rest, i32(self.launch.blocks_per_program))
        numbers = program_numbers(b, rest, [b.size(size, symbols) for size in self.kernel.grid.data])
        for op in self.kernel.walk():
            if isinstance(op, tile.ProgramOp):
                self.scalars[op.out] = b.convert("zext", numbers[op.axis.value.data], "i64")

    # -- blocks ------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        for op in block.ops:
            if op not in self.late:
                self.visit(op)

    def visit(self, op: Operation) -> None:
        outer = self.b.made_for(op.location)
        emit = EMITTERS.rule_of(op)
        if emit is not None:
            emit(self, op)
        self.b.made_for(outer)

    # -- sizes -------------------------------------------------------------------------------------------------------

    def size(self, size: Size, operands: Sequence[SSAValue]) -> V:
        return self.b.size(size, {f"d{i}": self.scalars[operand] for i, operand in enumerate(operands)})

    def extent(self, value: SSAValue, axis: int) -> V:
        """How many elements a tile has along an axis (i32)."""
        limits = [self.size(*limit) for limit in self.limits.of(value, axis)]
        return self.least(limits, tile.tile_type(value).sizes[axis])

    def least(self, limits: Sequence[V], capacity: int) -> V:
        """The smallest of several extents and a capacity (i32)."""
        result = i64(min([capacity, *(int(limit.name) for limit in limits if limit.name.isdigit())]))
        for limit in {v.name: v for v in limits if not v.name.isdigit()}.values():
            result = self.b.intrinsic("smin", result, limit)
        return short(self.b, result)

    def exists(self, layout: Layout, axis: int, offset: int, extent: V) -> V | None:
        """Whether the element of a register lies within an extent along an axis; None if it always does."""
        if extent.name.isdigit() and layout.last(axis) + offset < int(extent.name):
            return None
        place = self.b.add(self.threads.place(layout, axis), i32(offset))
        if place.name.isdigit() and extent.name.isdigit():
            return V("i1", "true" if int(place.name) < int(extent.name) else "false")
        return self.b.icmp("slt", place, extent)

    def both(self, *conditions: V | None) -> V | None:
        result: V | None = None
        for condition in conditions:
            if condition is not None and condition.name != "true":
                result = condition if result is None else self.b.binary("and", result, condition)
        return result

    # -- memory ------------------------------------------------------------------------------------------------------

    def widened(self, value: V, memory: DType, dtype: DType) -> V:
        return value if value.type == register_type(dtype) else emit_cast(self.b, value, memory, dtype)

    def stored(self, op: tile.StoreOp | tile.ScatterOp) -> SSAValue:
        """What is written: writing narrows it, so that it need not be narrowed before."""
        made = op.value.owner
        return made.args[0] if isinstance(made, tile.MapOp) and narrowed_to(made) == pointer_dtype(op) else op.value

    def registers_of(self, value: SSAValue | None, layout: Layout) -> list[V]:
        """A value's registers as those of a layout that it is broadcast to; nothing of nothing."""
        if value is None:
            return []
        return [self.tiles[value][pick] for pick in picked(layout, layout_of(value))]

    def existing(self, value: SSAValue, layout: Layout, along: Collection[int] | None = None) -> list[V | None]:
        """For each register, whether its element exists; the extents of some axes alone may be asked for."""
        limited = [a for a, side in enumerate(tile.tile_type(value).sizes) if side == layout.shape[a]]
        limited = limited if along is None else [a for a in limited if a in along]
        bounds = [self.extent(value, a) if a in limited else i32(side) for a, side in enumerate(layout.shape)]
        return [
            self.both(*(self.exists(layout, axis, offset[axis], bounds[axis]) for axis in range(layout.rank)))
            for offset in layout.offsets
        ]

    # -- values ------------------------------------------------------------------------------------------------------

    def held(self, layout: Layout) -> list[V | None]:
        """For each register of a layout, whether the tile has such an element."""
        return [
            self.both(*(self.exists(layout, a, offset[a], i32(layout.shape[a])) for a in range(layout.rank)))
            for offset in layout.offsets
        ]


def _all_layouts(kernel: tile.KernelOp) -> list[Layout]:
    found: dict[Layout, None] = dict.fromkeys([scalar_layout(integer(kernel, WARPS) or 1)])
    for op in kernel.walk():
        if LAYOUTS_ATTRIBUTE in op.attributes:
            found.update(dict.fromkeys(layouts_of(op)))
    return list(found)


def _is_plain(kernel: tile.KernelOp) -> bool:
    """Whether people wrote a kernel, which multiplies no tiles: the order of dots and their copies is chosen."""
    if not MemoryGroups.of_kernel(kernel).written:
        return False
    return not any(isinstance(op, WarpSpecializeOp | StreamOp) or cost_of(op).compiles_slowly for op in kernel.walk())


def _parameter(argument: SSAValue) -> str:
    match argument.type:
        case tile.PointerType():
            return "ptr addrspace(1) noundef"
        case tile.TileType() as type_:
            return f"{memory_type(type_.dtype)} noundef"
        case _:
            return "i64 noundef"


def _scalar_argument(b: Function, value: V, dtype: DType) -> V:
    return load_convert(b, value, dtype)
