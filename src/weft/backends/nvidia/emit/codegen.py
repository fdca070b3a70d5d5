"""Annotated tile kernels → LLVM functions for NVPTX: a program is a block of threads, a tile is registers of all.

Every tile value is a list of LLVM values in each thread, one for each register of its layout. What a layout has beyond
a tile's side, or beyond its extents at run time, is computed along and never written, nor counted by reductions.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.llvm.builder import Function, Module, V, const, i64, memory_type
from weft.backends.llvm.cast import emit_cast, load_convert, register_type
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.emit.block import Threads, i32, short
from weft.backends.nvidia.emit.control import emit_number, program_numbers, where_programs_are
from weft.backends.nvidia.emit.convert_layout import emit_convert
from weft.backends.nvidia.emit.dispatch import emit_written
from weft.backends.nvidia.emit.dot.dequantize import Decoder
from weft.backends.nvidia.emit.dot.fma_dot import emit_fma_dot
from weft.backends.nvidia.emit.dot.lhs_row import held_in, load_lhs_row
from weft.backends.nvidia.emit.dot.mma import multiply
from weft.backends.nvidia.emit.dot.per_lane_dot import multiply_per_lane
from weft.backends.nvidia.emit.elements import emit_elements, emit_position
from weft.backends.nvidia.emit.horizontal_select import emit_horizontal_select
from weft.backends.nvidia.emit.loops import loop_with
from weft.backends.nvidia.emit.memory.cp_async import emit_cp_async
from weft.backends.nvidia.emit.memory.gather_scatter import emit_gather, emit_scatter
from weft.backends.nvidia.emit.memory.scratch import emit_scratch
from weft.backends.nvidia.emit.memory.strided_memory import emit_load, emit_pack, emit_store
from weft.backends.nvidia.emit.reduce.cluster_reduce import Crossing
from weft.backends.nvidia.emit.reduce.online_softmax import emit_added_exponentials, emit_online_softmax
from weft.backends.nvidia.emit.reduce.reduce import emit_reduce
from weft.backends.nvidia.emit.warps.dynamic_tile_scheduler import DynamicTileScheduler
from weft.backends.nvidia.emit.warps.programmatic_launch import grid_dependency_wait, launch_dependents
from weft.backends.nvidia.emit.warps.ring_buffers import Ring
from weft.backends.nvidia.emit.warps.row_streams import emit_row_stream
from weft.backends.nvidia.emit.warps.warp_specialize import RING_OPS, emit_warp_op
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import APART, RESIDENT, WARPS, BarrierOp, ConvertOp, integer, layout_of, layouts_of
from weft.backends.nvidia.ir.dialect import LAYOUTS as LAYOUTS_ATTRIBUTE
from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC
from weft.backends.nvidia.ir.extents import ConvertedLimits
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.layouts import WARP, Layout, picked, scalar_layout
from weft.backends.nvidia.ir.mma import AHEAD, MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.programmatic_launch import loop_that_asks_early, ops_behind_wait
from weft.backends.nvidia.ir.row_streams import BulkCopyOp, BulkCopyRowsOp, ReadOp, StreamOp, WaitKeptOp
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.tile import dialect as tile

_MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'


class KernelCodegen:
    """Makes the function of one kernel."""

    def __init__(self, module: Module, kernel: tile.KernelOp, launch: Launch) -> None:
        self.module = module
        self.kernel = kernel
        self.launch = launch
        self.layouts = _all_layouts(kernel)
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
        attributes = f'nounwind "nvvm.reqntid"="{self.launch.threads}" "nvvm.minctasm"="{integer(kernel, RESIDENT, 1)}"'
        if self.launch.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.launch.cluster}"'
        self.b = b = Function(self.module, kernel.sym_name.data, [*params, *maps], "void", attributes, "ptx_kernel")
        if self.launch.programmatic:
            launch_dependents(b, kernel)
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
            grid_dependency_wait(b)
        with where_programs_are(self):
            self.block(kernel.block)
            self.threads.gather()
        b.finish()

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
        self._emit(op)
        self.b.made_for(outer)

    def _emit(self, op: Operation) -> None:
        match op:
            case tile.ConstantOp():
                type_ = tile.tile_type(op.out)
                value = const(from_attribute(op.value), register_type(type_.dtype))  # type: ignore[arg-type]
                self.tiles[op.out] = [value] * layout_of(op.out).count
            case tile.PositionOp():
                emit_position(self, op)
            case tile.LoadOp():
                emit_load(self, op)
            case tile.StoreOp():
                emit_store(self, op)
            case tile.GatherOp():
                emit_gather(self, op)
            case tile.ScatterOp():
                emit_scatter(self, op)
            case tile.MapOp():
                emit_elements(self, op)
            case tile.ReduceOp() | MomentsOp():
                emit_reduce(self, op)
            case tile.AddExponentialsOp():
                emit_added_exponentials(self, op)
            case OnlineSoftmaxOp():
                emit_online_softmax(self, op)
            case tile.DotOp():
                emit_fma_dot(self, op)
            case ConvertOp():
                emit_convert(self, op)
            case PackOp():
                emit_pack(self, op)
            case MmaOp():
                self._multiply(op)
            case SqueezeOp():
                self.tiles[op.out] = self.tiles[op.value]
            case ScratchOp():
                emit_scratch(self, op)
            case BarrierOp():
                self.threads.barrier()
            case tile.ForOp():
                self._loop(op)
            case tile.NumberOp():
                emit_number(self, op)
            case HorizontalSelectOp():
                emit_horizontal_select(self, op)
            case tile.ProgramOp() | tile.ReturnOp() | tile.YieldOp() | tile.DequantizeOp():
                pass
            case StreamOp() | BulkCopyOp() | BulkCopyRowsOp() | ReadOp() | WaitKeptOp():
                emit_row_stream(self, op)
            case _:
                if not emit_written(self, op) and not emit_cp_async(self, op):
                    emit_warp_op(self, op)

    def _loop(self, op: tile.ForOp) -> None:
        if any(AHEAD in inner.attributes for inner in op.block.ops):
            self._loop_ahead(op)
            return
        lower, upper, step = (self.size(size, op.indices) for size in op.bounds.data)
        initial = [self.tiles[value] for value in op.initial]
        rings = self._rings_of(op)
        drawing = self.drawing if DYNAMIC in op.attributes else None
        rings += [] if drawing is None else [drawing.ring]
        initial += [ring.state for ring in rings]
        drawn: list[V] = []

        def body(variable: V, carried: list[list[V]]) -> list[list[V]]:
            self.scalars[op.block.args[0]] = variable
            for ring in reversed(rings):
                ring.state = carried.pop()
            self.tiles.update(zip(op.block.args[1:], carried, strict=True))
            asked = None if drawing is None else drawing.ask(self.b, upper, step)
            self.block(op.block)
            if drawing is not None:
                drawn.append(drawing.following(self.b, asked))
            last = op.block.last_op
            assert last is not None
            pairs = zip(last.operands, op.block.args[1:], strict=True)
            yielded = [self._kept(value, self.tiles[before]) for value, before in pairs]
            return [*yielded, *(ring.state for ring in rings)]

        following = None if drawing is None else drawn.pop
        results = loop_with(self.b, lower, upper, step, initial, body, following=following)
        for ring in reversed(rings):
            ring.state = results.pop()
        self.tiles.update(zip(op.results, results, strict=True))

    def _rings_of(self, op: tile.ForOp) -> list[Ring]:
        """The rings of a loop: where a role is in them goes from iteration to iteration too."""
        numbers = sorted({inner.ring.value.data for inner in op.walk() if isinstance(inner, RING_OPS)})
        return [self.rings[number] for number in numbers]

    def _loop_ahead(self, op: tile.ForOp) -> None:
        """A loop that makes some loads for its next iteration before it does this one; the last iteration follows
        behind it.
        """
        b, variable = self.b, op.block.args[0]
        lower, upper, step = (size for size in op.bounds.data if isinstance(size, int))
        last = lower + (upper - 1 - lower) // step * step
        early = [inner for inner in op.block.ops if AHEAD in inner.attributes]
        count, rings = len(op.initial), self._rings_of(op)
        behind = count + len(rings)

        def load(number: V) -> list[list[V]]:
            self.scalars[variable] = number
            for inner in early:
                self.visit(inner)
            return [self.tiles[inner.results[0]] for inner in early]

        def turn(number: V, carried: list[list[V]]) -> list[list[V]]:
            self.scalars[variable] = number
            self.tiles.update(zip(op.block.args[1:], carried[:count], strict=True))
            for ring, state in zip(rings, carried[count:behind], strict=True):
                ring.state = state
            self.tiles.update(zip((inner.results[0] for inner in early), carried[behind:], strict=True))
            for inner in op.block.ops:
                if inner not in early:
                    self.visit(inner)
            end = op.block.last_op
            assert end is not None
            pairs = zip(end.operands, op.block.args[1:], strict=True)
            yielded = [self._kept(value, self.tiles[before]) for value, before in pairs]
            return [*yielded, *(ring.state for ring in rings)]

        def body(number: V, carried: list[list[V]]) -> list[list[V]]:
            if rings:  # a slot is given back when all that was asked for is there: the loads come behind that
                yielded = turn(number, carried)
                return [*yielded, *load(b.add(number, i64(step)))]
            following = load(b.add(number, i64(step)))
            return [*turn(number, carried), *following]

        initial = [*(self.tiles[value] for value in op.initial), *(ring.state for ring in rings), *load(i64(lower))]
        if op is self.early:
            grid_dependency_wait(b)
            for each in self.late:
                self.visit(each)
        if (held := held_in(op)) is not None and not self.rings:
            load_lhs_row(self, held)
        results = loop_with(b, i64(lower), i64(last), i64(step), initial, body, unrolled=False)
        self.tiles.update(zip(op.results, turn(i64(last), results)[:count], strict=True))

    def _multiply(self, op: MmaOp) -> None:
        total, fragments = op.accumulator, op.fragments
        left, codes = self.tiles[op.a], op.b.owner
        words, columns = fragments.vector // 2, fragments.tiles_n

        def right(chunk: int, column: int, part: int, parts: int) -> Sequence[V]:
            first = (chunk * columns + column) * words + part * (words // parts)
            return self.tiles[op.b][first : first + words // parts]

        sums = [V("float", "0.0")] * layout_of(op.out).count if total is None else self.tiles[total]
        if isinstance(codes, tile.DequantizeOp):
            decoder = Decoder(self, codes)
            if fragments.apart:
                self.tiles[op.out] = multiply_per_lane(self, op, decoder, sums)
                return
            left = decoder.ordered(left)

            def right(chunk: int, column: int, part: int, parts: int) -> Sequence[V]:
                return decoder.words((chunk * columns + column) * parts + part, fragments.vector // parts)

        self.tiles[op.out] = multiply(self.b, fragments, left, right, sums, op.dtype.data)

    def _kept(self, value: SSAValue, before: list[V]) -> list[V]:
        """A tile that a loop carries on: what a smaller one lacks stays as it was."""
        values, sides = self.tiles[value], tile.tile_type(value).sizes
        limits = [(size, side) for axis, side in enumerate(sides) for size, _ in self.limits.of(value, axis)]
        if all(isinstance(size, int) and size >= side for size, side in limits):
            return values
        exists = self.existing(value, layout_of(value))
        exists = exists[:: len(exists) // len(values)]  # a word of two neighbours is there where its first is
        rows = zip(exists, values, before, strict=True)
        return [new if there is None else self.b.select(there, new, old) for there, new, old in rows]

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

    def existing(self, value: SSAValue, layout: Layout) -> list[V | None]:
        """For each register, whether its element exists."""
        own = tile.tile_type(value).sizes
        bounds = [self.extent(value, a) if own[a] == side else i32(side) for a, side in enumerate(layout.shape)]
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


def _parameter(argument: SSAValue) -> str:
    match argument.type:
        case tile.PointerType():
            return "ptr addrspace(1)"
        case tile.TileType() as type_:
            return memory_type(type_.dtype)
        case _:
            return "i64"


def _scalar_argument(b: Function, value: V, dtype: DType) -> V:
    return load_convert(b, value, dtype)
