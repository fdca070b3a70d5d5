"""Annotated tile kernels → LLVM functions for NVPTX: a program is a block of threads, a tile is registers of all.

Every tile value is a list of LLVM values in each thread, one for each register of its layout. What a layout has beyond
a tile's side, or beyond its extents at run time, is computed along and never written, nor counted by reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.llvm.builder import Function, Module, V, const, i64, memory_type
from weft.backends.llvm.cast import emit_bitcast, emit_cast, load_convert, register_type, truncate_to
from weft.backends.nvidia.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.asynchronous import MAP, RolesOp
from weft.backends.nvidia.block import Threads, do, i32, load_shared, register_bytes, store_shared
from weft.backends.nvidia.cluster_reduce import Crossing
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.computed_memory import emit_gather, emit_scatter
from weft.backends.nvidia.dialect import LAYOUTS as LAYOUTS_ATTRIBUTE
from weft.backends.nvidia.dialect import RESIDENT, SHARED, WARPS, BarrierOp, ConvertOp, integer, layout_of, layouts_of
from weft.backends.nvidia.engine_stores import store_by_engine
from weft.backends.nvidia.extents import ConvertedLimits
from weft.backends.nvidia.global_memory import joined, load_chunk, load_pairs, pair, rounded_to, store_chunk
from weft.backends.nvidia.layouts import WARP, Layout
from weft.backends.nvidia.loops import loop_with
from weft.backends.nvidia.math import divide_all, emit_map, rough_exp
from weft.backends.nvidia.mma import AHEAD, PACKED, MmaOp, PackOp, SqueezeOp, multiply
from weft.backends.nvidia.plain_dot import emit_plain_dot
from weft.backends.nvidia.reduce import Exchange, Parts, reduce_axis
from weft.backends.nvidia.roles import RING_OPS, Ring, emit_asynchronous
from weft.backends.nvidia.row_roles import emit_streaming
from weft.backends.nvidia.shared_memory import part_bytes, row_pitch
from weft.backends.nvidia.streaming import CROSSES, CopyOp, ReadOp, StreamOp, WaitKeptOp
from weft.backends.nvidia.written import emit_written
from weft.backends.nvidia.written_layouts import scalar_layout
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

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
        self.ring: Ring | None = None
        self.kept: Ring | None = None
        self.crossing: Crossing | None = None
        self.limits = ConvertedLimits()

    def emit(self) -> None:
        kernel = self.kernel
        arguments = kernel.block.args
        params = [(_parameter(argument), f"a{i}") for i, argument in enumerate(arguments)]
        maps = [(_MAP, f"m{i}") for i in range(len(self.launch.maps))]
        attributes = f'nounwind "nvvm.reqntid"="{self.launch.threads}" "nvvm.minctasm"="{integer(kernel, RESIDENT, 1)}"'
        if self.launch.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.launch.cluster}"'
        self.b = b = Function(self.module, kernel.sym_name.data, [*params, *maps], "void", attributes, "ptx_kernel")
        self.maps = [b.emit("i64", f"ptrtoint {value} to i64") for value in b.args[len(params) :]]
        for argument, value in zip(arguments, b.args, strict=False):
            match argument.type:
                case tile.PointerType():
                    self.pointers[argument] = b.emit("i64", f"ptrtoint ptr addrspace(1) {value.name} to i64")
                case tile.TileType() as type_:
                    self.tiles[argument] = [_scalar_argument(b, value, type_.dtype)]
                case _:
                    self.scalars[argument] = value
        if not any(isinstance(op, RolesOp | StreamOp) for op in kernel.block.ops):
            self.threads = Threads.of_block(b, self.launch.threads // WARP, self.launch.cluster)
            self.threads.prepare(self.layouts)
            self._place_program()
        if self.launch.programmatic:
            # The next kernel's blocks may come as soon as these leave room; nothing is read before the last one ended.
            do(b, "griddepcontrol.launch_dependents; griddepcontrol.wait;", "")
        self.block(kernel.block)
        b.finish()

    def _place_program(self) -> None:
        """Turn the block's number into one number an axis of the grid: all fit 32 bits, and so does their product."""
        b = self.b
        sizes = [arg for arg in self.kernel.block.args if arg in self.scalars]
        symbols = {name: self.scalars[arg] for name, arg in zip(self.kernel.size_names, sizes, strict=True)}
        rest = b.call("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32")
        if self.launch.blocks_per_program > 1:
            rest = b.binary("udiv", rest, i32(self.launch.blocks_per_program))
        numbers: list[V] = []
        grid = self.kernel.grid.data
        for position in range(len(grid) - 1, 0, -1):
            size = _short(b, b.size(grid[position], symbols))
            quotient = b.binary("udiv", rest, size)
            numbers.append(b.sub(rest, b.mul(quotient, size)))
            rest = quotient
        numbers.append(rest)
        numbers.reverse()
        for op in self.kernel.walk():
            if isinstance(op, tile.ProgramOp):
                self.scalars[op.out] = b.convert("zext", numbers[op.axis.value.data], "i64")

    # -- blocks ------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.visit(op)

    def visit(self, op: Operation) -> None:
        match op:
            case tile.ConstantOp():
                type_ = tile.tile_type(op.out)
                value = const(from_attribute(op.value), register_type(type_.dtype))  # type: ignore[arg-type]
                self.tiles[op.out] = [value] * layout_of(op.out).count
            case tile.PositionOp():
                self._position(op)
            case tile.LoadOp():
                self._load(op)
            case tile.StoreOp():
                self._store(op)
            case tile.GatherOp():
                emit_gather(self, op)
            case tile.ScatterOp():
                emit_scatter(self, op)
            case tile.MapOp():
                self._map(op)
            case tile.ReduceOp():
                self._reduce(op)
            case tile.DotOp():
                emit_plain_dot(self, op)
            case ConvertOp():
                self._convert(op)
            case PackOp():
                self._pack(op)
            case MmaOp():
                total = op.accumulator
                zeros = [V("float", "0.0")] * layout_of(op.out).count
                sums = zeros if total is None else self.tiles[total]
                operands = self.tiles[op.a], self.tiles[op.b]
                self.tiles[op.out] = multiply(self.b, op.fragments, *operands, sums, op.dtype.data)
            case SqueezeOp():
                self.tiles[op.out] = self.tiles[op.value]
            case BarrierOp():
                self.threads.barrier()
            case tile.ForOp():
                self._loop(op)
            case tile.ProgramOp() | tile.ReturnOp() | tile.YieldOp():
                pass
            case StreamOp() | CopyOp() | ReadOp() | WaitKeptOp():
                emit_streaming(self, op)
            case _:
                if not emit_written(self, op):
                    emit_asynchronous(self, op)

    def _loop(self, op: tile.ForOp) -> None:
        if any(AHEAD in inner.attributes for inner in op.block.ops):
            self._loop_ahead(op)
            return
        lower, upper, step = (self.size(size, op.indices) for size in op.bounds.data)
        initial = [self.tiles[value] for value in op.initial]

        ring = self.ring if any(isinstance(inner, RING_OPS) for inner in op.walk()) else None
        if ring is not None:  # where a role is in the ring goes from turn to turn too
            initial.append(ring.state)

        def body(variable: V, carried: list[list[V]]) -> list[list[V]]:
            self.scalars[op.block.args[0]] = variable
            if ring is not None:
                ring.state = carried.pop()
            self.tiles.update(zip(op.block.args[1:], carried, strict=True))
            self.block(op.block)
            last = op.block.last_op
            assert last is not None
            pairs = zip(last.operands, op.block.args[1:], strict=True)
            yielded = [self._kept(value, self.tiles[before]) for value, before in pairs]
            return yielded if ring is None else [*yielded, ring.state]

        results = loop_with(self.b, lower, upper, step, initial, body)
        if ring is not None:
            ring.state = results.pop()
        self.tiles.update(zip(op.results, results, strict=True))

    def _loop_ahead(self, op: tile.ForOp) -> None:
        """A loop that makes some loads for its next turn before it does this one; the last turn follows behind it."""
        b, variable = self.b, op.block.args[0]
        lower, upper, step = (size for size in op.bounds.data if isinstance(size, int))
        last = lower + (upper - 1 - lower) // step * step
        early = [inner for inner in op.block.ops if AHEAD in inner.attributes]

        def load(number: V) -> list[list[V]]:
            self.scalars[variable] = number
            for inner in early:
                self.visit(inner)
            return [self.tiles[inner.results[0]] for inner in early]

        def turn(number: V, carried: list[list[V]]) -> list[list[V]]:
            self.scalars[variable] = number
            count = len(op.initial)
            self.tiles.update(zip(op.block.args[1:], carried[:count], strict=True))
            self.tiles.update(zip((inner.results[0] for inner in early), carried[count:], strict=True))
            for inner in op.block.ops:
                if inner not in early:
                    self.visit(inner)
            end = op.block.last_op
            assert end is not None
            pairs = zip(end.operands, op.block.args[1:], strict=True)
            return [self._kept(value, self.tiles[before]) for value, before in pairs]

        def body(number: V, carried: list[list[V]]) -> list[list[V]]:
            following = load(b.add(number, i64(step)))
            return [*turn(number, carried), *following]

        initial = [*(self.tiles[value] for value in op.initial), *load(i64(lower))]
        results = loop_with(b, i64(lower), i64(last), i64(step), initial, body, unrolled=False)
        self.tiles.update(zip(op.results, turn(i64(last), results), strict=True))

    def _kept(self, value: SSAValue, before: list[V]) -> list[V]:
        """A tile that a loop carries on: what a smaller one lacks stays as it was."""
        values, sides = self.tiles[value], tile.tile_type(value).sizes
        limits = [(size, side) for axis, side in enumerate(sides) for size, _ in self.limits.of(value, axis)]
        if all(isinstance(size, int) and size >= side for size, side in limits):
            return values
        exists = self.existing(value, layout_of(value))
        rows = zip(exists, values, before, strict=True)
        return [new if there is None else self.b.select(there, new, old) for there, new, old in rows]

    # -- sizes -------------------------------------------------------------------------------------------------------

    def size(self, size: Size, operands: Sequence[SSAValue]) -> V:
        return self.b.size(size, {f"d{i}": self.scalars[operand] for i, operand in enumerate(operands)})

    def extent(self, value: SSAValue, axis: int) -> V:
        """How many elements a tile has along an axis (i32)."""
        limits = [self.size(*limit) for limit in self.limits.of(value, axis)]
        return self._least(limits, tile.tile_type(value).sizes[axis])

    def _least(self, limits: Sequence[V], capacity: int) -> V:
        result = i64(capacity)
        for limit in {v.name: v for v in limits if v.name != str(capacity)}.values():
            result = self.b.intrinsic("smin", result, limit)
        return _short(self.b, result)

    def exists(self, layout: Layout, axis: int, offset: int, extent: V) -> V | None:
        """Whether the element of a register lies within an extent along an axis; None if it always does."""
        if extent.name.isdigit() and layout.covered(axis) <= int(extent.name):
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

    def _load(self, op: tile.LoadOp) -> None:
        layout = layout_of(op.out)
        if PACKED in op.attributes:
            self.tiles[op.out] = self._packed(op, layout)
            return
        values: list[V] = [V("", "")] * layout.count
        for registers, address, predicate in self._chunks(op, layout):
            loaded = load_chunk(self.b, address, pointer_dtype(op), len(registers), predicate)
            for register, value in zip(registers, loaded, strict=True):
                values[register] = self.widened(value, pointer_dtype(op), tile.tile_type(op.out).dtype)
        self.tiles[op.out] = values

    def _packed(self, op: tile.LoadOp, layout: Layout) -> list[V]:
        """The registers of a load that hold two neighbours each."""
        once = AHEAD in op.attributes
        words = [
            word
            for registers, address, predicate in self._chunks(op, layout)
            for word in load_pairs(self.b, address, len(registers), predicate, once=once)
        ]
        if len(words) * 2 == layout.count:
            return words
        return [joined(self.b, low, high) for low, high in zip(words[::2], words[1::2], strict=True)]

    def _pack(self, op: PackOp) -> None:
        values, exists = self.tiles[op.value], self.existing(op.value, layout_of(op.out))
        zero, dtype = V("float", "0.0"), op.dtype.data
        held = [v if e is None else self.b.select(e, v, zero) for v, e in zip(values, exists, strict=True)]
        self.tiles[op.out] = [pair(self.b, low, high, dtype) for low, high in zip(held[::2], held[1::2], strict=True)]

    def widened(self, value: V, memory: DType, dtype: DType) -> V:
        return value if value.type == register_type(dtype) else emit_cast(self.b, value, memory, dtype)

    def _store(self, op: tile.StoreOp) -> None:
        if MAP in op.attributes:
            store_by_engine(self, op)
            return
        (layout,) = layouts_of(op)
        source, values = layout_of(op.value), self.stored(op)
        picks = picked(layout, source)
        owner = self.threads.owner(layout)
        for registers, address, predicate in self._chunks(op, layout, op.value):
            chunk = [values[picks[register]] for register in registers]
            store_chunk(self.b, address, chunk, pointer_dtype(op), self.both(predicate, owner))

    def stored(self, op: tile.StoreOp) -> list[V]:
        """The registers of what is written; writing narrows it, so that it need not be narrowed before."""
        made = op.value.owner
        if isinstance(made, tile.MapOp) and narrowed_to(made) == pointer_dtype(op):
            return self.tiles[made.args[0]]
        return self.tiles[op.value]

    def _chunks(
        self, op: tile.LoadOp | tile.StoreOp, layout: Layout, value: SSAValue | None = None
    ) -> list[tuple[list[int], V, V | None]]:
        """The registers that are moved together, the address of the first, and whether they exist."""
        b, dtype = self.b, pointer_dtype(op)
        strides = op.strides.data
        bounds = [self._bound(op, layout, axis, value) for axis in range(layout.rank)]
        base = self.size(op.offset.data[0], op.indices)
        for axis, stride in enumerate(strides):
            place = b.convert("zext", self.threads.place(layout, axis), "i64")
            base = b.add(
                base,
                b.mul(place if place.name.startswith("%") else i64(int(place.name)), self.size(stride, op.indices)),
            )
        origin = b.add(self.pointers[op.pointer], b.mul(base, i64(dtype.bytes)))
        width = self._chunk_width(op, layout, value)
        chunks: list[tuple[list[int], V, V | None]] = []
        for start in range(0, layout.count, width):
            offset = layout.offsets[start]
            ahead = i64(0)
            for axis, stride in enumerate(strides):
                ahead = b.add(ahead, b.mul(i64(offset[axis]), self.size(stride, op.indices)))
            address = b.add(origin, b.mul(ahead, i64(dtype.bytes)))
            conditions = [self.exists(layout, axis, offset[axis], bounds[axis]) for axis in range(layout.rank)]
            chunks.append((list(range(start, start + width)), address, self.both(*conditions)))
        return chunks

    def _bound(self, op: tile.LoadOp | tile.StoreOp, layout: Layout, axis: int, value: SSAValue | None) -> V:
        limits = [self.size(op.extents.data[axis], op.indices)]
        if value is not None and tile.tile_type(value).sizes[axis] != 1:
            limits += [self.size(*limit) for limit in self.limits.of(value, axis)]
        return self._least(limits, layout.shape[axis])

    def _chunk_width(self, op: tile.LoadOp | tile.StoreOp, layout: Layout, value: SSAValue | None) -> int:
        """How many neighbours are moved at once: they lie side by side, aligned, and exist together."""
        vector = layout.vector
        if vector.axis is None or op.strides.data[vector.axis] != 1:
            return 1
        width = min(vector.size, WIDEST // pointer_dtype(op).bytes)
        sizes = [op.offset.data[0], op.extents.data[vector.axis], layout.shape[vector.axis]]
        sizes += [
            stride for axis, stride in enumerate(op.strides.data) if axis != vector.axis and layout.shape[axis] > 1
        ]
        steps = [divisor_of(size, op.indices) for size in sizes]
        if value is not None:
            steps += [divisor_of(*limit) for limit in self.limits.of(value, vector.axis)]
        while any(step % width for step in steps):
            width //= 2
        return width

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

    def _position(self, op: tile.PositionOp) -> None:
        b, layout = self.b, layout_of(op.out)
        element = register_type(tile.tile_type(op.out).dtype)
        strides = [self.size(stride, op.indices) for stride in op.strides.data]
        base = self.size(op.offset.data[0], op.indices)
        for axis, stride in enumerate(strides):
            base = b.add(base, b.mul(_wide(b, self.threads.place(layout, axis)), stride))
        values: list[V] = []
        for offset in layout.offsets:
            total = base
            for axis, stride in enumerate(strides):
                total = b.add(total, b.mul(i64(offset[axis]), stride))
            values.append(_fitted(b, total, element))
        self.tiles[op.out] = values

    def _map(self, op: tile.MapOp) -> None:
        layout = layout_of(op.out)
        operands = [self.registers_of(arg, layout) for arg in op.args]
        if self._divides_many(op):
            exact = any(narrowed_to(use.operation) is None for use in op.out.uses)
            dividends, divisors = operands
            self.tiles[op.out] = self._divided(dividends, divisors, exact)
            return
        known: dict[tuple[str, ...], V] = {}
        results: list[V] = []
        for args in zip(*operands, strict=True):
            key = tuple(arg.name for arg in args)
            if key not in known:
                known[key] = self._apply(op, list(args))
            results.append(known[key])
        self.tiles[op.out] = results

    def _divides_many(self, op: tile.MapOp) -> bool:
        """Whether a thread divides several floats by the same."""
        if op.function.data != "div" or register_type(tile.tile_type(op.out).dtype) != "float":
            return False
        return len(self.tiles[op.args[1]]) * 2 <= layout_of(op.out).count

    def _divided(self, dividends: list[V], divisors: list[V], exact: bool) -> list[V]:
        results: dict[int, V] = {}
        for divisor in dict.fromkeys(divisors):
            places = [place for place, each in enumerate(divisors) if each == divisor]
            quotients = divide_all(self.b, [dividends[place] for place in places], divisor, exact)
            results.update(zip(places, quotients, strict=True))
        return [results[place] for place in range(len(dividends))]

    def _apply(self, op: tile.MapOp, args: list[V]) -> V:
        function = op.function.data
        if function in ("cast", "bitcast"):
            source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
            assert isinstance(source, DType) and isinstance(target, DType)
            if function == "bitcast":
                return emit_bitcast(self.b, args[0], source, target)
            if "rounding" in op.attributes and source.is_float and target.is_float:
                return truncate_to(self.b, args[0], target)
            if narrowed_to(op) is not None and args[0].type == "float":
                return rounded_to(self.b, args[0], target)
            return emit_cast(self.b, args[0], source, target)
        if function == "exp" and args[0].type == "float" and loses_digits(op.out):
            return rough_exp(self.b, args[0])
        return emit_map(self.b, function, args, tile.tile_type(op.args[-1]).dtype)

    def _convert(self, op: ConvertOp) -> None:
        b, type_ = self.b, tile.tile_type(op.out)
        source, target = layout_of(op.value), layout_of(op.out)
        size, place = register_bytes(type_.dtype), integer(op, SHARED)
        exists, owner = self.held(source), self.threads.owner(source)
        for register, value in enumerate(self.tiles[op.value]):
            index = self.row_major(source, register, size)
            predicate = self.both(exists[register], owner)
            if predicate is None:
                store_shared(b, value, place, index, size)
            else:
                with b.when(predicate):
                    store_shared(b, value, place, index, size)
        self.threads.barrier()
        last = 1
        for side in type_.sizes[:-1]:
            last *= side
        last = i32(last * row_pitch(type_.sizes[-1], size) - 1)
        values: list[V] = []
        for register in range(target.count):
            index = self.row_major(target, register, size)
            if any(target.covered(axis) > target.shape[axis] for axis in range(target.rank)):
                index = b.intrinsic("umin", index, last)  # what does not exist is read from somewhere
            values.append(load_shared(b, register_type(type_.dtype), place, index, size))
        self.tiles[op.out] = values

    def held(self, layout: Layout) -> list[V | None]:
        """For each register of a layout, whether the tile has such an element."""
        return [
            self.both(*(self.exists(layout, a, offset[a], i32(layout.shape[a])) for a in range(layout.rank)))
            for offset in layout.offsets
        ]

    def row_major(self, layout: Layout, register: int, size: int) -> V:
        """Where a register's element lies in a tile that stands in shared memory row by row."""
        index, pitch = i32(0), 1
        for axis in range(layout.rank - 1, -1, -1):
            place = self.b.add(self.threads.place(layout, axis), i32(layout.offsets[register][axis]))
            index = self.b.add(index, self.b.mul(place, i32(pitch)))
            pitch *= row_pitch(layout.shape[axis], size) if axis == layout.rank - 1 else layout.shape[axis]
        return index

    # -- reductions --------------------------------------------------------------------------------------------------

    def _reduce(self, op: tile.ReduceOp) -> None:
        b, layout, axis = self.b, layout_of(op.value), op.axis.value.data
        dtype, combiner = tile.tile_type(op.value).dtype, COMBINERS[op.kind.data]
        identity = const(combiner.identity(dtype), register_type(dtype))
        extent = self.extent(op.value, axis) if layout.shape[axis] > 1 else i32(1)
        parts: list[Parts] = []
        for offset, value in zip(layout.offsets, self.tiles[op.value], strict=True):
            there = self.exists(layout, axis, offset[axis], extent)
            if there is not None:
                value = b.select(there, value, identity)
            if not combiner.indexed:
                parts.append((value,))
                continue
            place = _wide(b, b.add(self.threads.place(layout, axis), i32(offset[axis])))
            parts.append((value, place if there is None else b.select(there, place, i64(-1))))

        def combine(x: Parts, y: Parts) -> Parts:
            if combiner.indexed:
                return first_extremum(b, x, y, "gt" if op.kind.data == "argmax" else "lt", dtype)
            return (emit_map(b, combiner.function, [x[0], y[0]], dtype),)

        via = Exchange(integer(op, SHARED), part_bytes(op), self.crossing if CROSSES in op.attributes else None)
        results = reduce_axis(b, self.threads, layout, axis, parts, combine, via)
        self.tiles[op.out] = [result[-1] for result in results]


def first_extremum(b: Function, x: Parts, y: Parts, better: str, dtype: DType) -> Parts:
    """Of two values with positions (-1: none), the better one, NaN before all, and of equal ones the first."""
    wins = emit_map(b, better, [y[0], x[0]], dtype)
    same = emit_map(b, "eq", [y[0], x[0]], dtype)
    if dtype.is_float:
        nan_x, nan_y = (emit_map(b, "isnan", [value], dtype) for value in (x[0], y[0]))
        wins = b.binary("or", wins, b.binary("and", nan_y, b.binary("xor", nan_x, const(True, "i1"))))
        same = b.binary("or", same, b.binary("and", nan_x, nan_y))
    wins = b.binary("or", wins, b.binary("and", same, b.icmp("ult", y[1], x[1])))  # -1 is the last, unsigned
    wins = b.binary("or", wins, b.icmp("slt", x[1], i64(0)))
    wins = b.binary("and", wins, b.icmp("sge", y[1], i64(0)))
    return b.select(wins, y[0], x[0]), b.select(wins, y[1], x[1])


def loses_digits(value: SSAValue) -> bool:
    """Whether all that becomes of a tile of positive numbers is a sum, or is narrowed to 16 bits."""
    for use in value.uses:
        match use.operation:
            case tile.ReduceOp() as op if op.kind.data == "sum":
                pass
            case tile.MapOp() as op if narrowed_to(op) is not None:
                pass
            case tile.StoreOp() as op if pointer_dtype(op).bytes == 2 and pointer_dtype(op).is_float:
                pass
            case tile.MapOp() as op if op.function.data in ("mul", "div") and use.index == 0 and loses_digits(op.out):
                pass
            case _:
                return False
    return True


def narrowed_to(op: Operation) -> DType | None:
    """The type of 16 bits that a cast rounds floats to, if it is such a cast."""
    if not isinstance(op, tile.MapOp) or op.function.data != "cast" or "rounding" in op.attributes:
        return None
    source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
    assert isinstance(source, DType) and isinstance(target, DType)
    return target if source.name == "f32" and target.name in ("bf16", "f16") else None


@lru_cache(4096)
def picked(layout: Layout, operand: Layout) -> tuple[int, ...]:
    """For each register of a layout, which one of an operand that is broadcast to it holds its element."""
    places = {offset: number for number, offset in enumerate(operand.offsets)}
    flat = [axis for axis in range(layout.rank) if operand.shape[axis] == 1]
    result: list[int] = []
    for offset in layout.offsets:
        own = list(offset)
        for axis in flat:
            own[axis] = 0
        result.append(places[tuple(own)])
    return tuple(result)


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


def _short(b: Function, value: V) -> V:
    """A number that fits 32 bits."""
    return b.convert("trunc", value, "i32") if value.name.startswith("%") else V("i32", value.name)


def _wide(b: Function, value: V) -> V:
    if value.type == "i64":
        return value
    return b.convert("sext", value, "i64") if value.name.startswith("%") else i64(int(value.name))


def _fitted(b: Function, value: V, element: str) -> V:
    """A 64-bit integer as a number of another type."""
    if element == "i64":
        return value
    if element.startswith("i"):
        return b.convert("trunc", value, element) if value.name.startswith("%") else V(element, value.name)
    return b.convert("sitofp", value, element)
