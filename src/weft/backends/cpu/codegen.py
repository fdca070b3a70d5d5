"""Tile kernels → LLVM functions: tile ops become vector loops, values stay in registers inside them.

A kernel becomes `void name(ptr args, i64 begin, i64 end)`: `args` holds its pointers and sizes, and it runs the
programs numbered begin to end, so that a thread takes a range of them. Inside a program each cluster is one loop nest:
the innermost axis goes in steps of several vector registers, its remainder in powers of two or one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, OpResult, SSAValue

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.clamped_casts import ClampedCast
from weft.backends.cpu.clusters import Fill, FusedLoop, Sink, form_steps, origin_of
from weft.backends.cpu.computed import emit_gather, emit_scatter
from weft.backends.cpu.dot import accumulates_in_place, buffered_operands, emit_dot
from weft.backends.cpu.memory_order import MemoryOrder, lazy_closure
from weft.backends.cpu.neighbours import Neighbours
from weft.backends.cpu.position import Position, load_strided, read_along, write_along
from weft.backends.cpu.rounded_halves import meets_a_rounding
from weft.backends.cpu.shared_lines import emit_loops
from weft.backends.cpu.sort import emit_sort
from weft.backends.cpu.target import CpuTarget
from weft.backends.cpu.views import emit_take, emit_view, prepare_views
from weft.backends.cpu.written import emit_written
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import emit_cast, load_convert, store_convert, truncate_to
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.math_division import Divisor
from weft.backends.llvm.values import V, const, i64, memory_type, scalar_type, vector
from weft.errors import LoweringError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, constant_term
from weft.ir.types import DType
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.extents import Limits


@dataclass(frozen=True)
class Access:
    """A strided access with its sizes evaluated: where it starts and how far apart the elements are.

    It starts `ahead` elements after `origin`, which those of a window share.
    """

    base: V
    strides: tuple[V, ...]
    dtype: DType
    origin: V
    ahead: int


def emit_kernel(module: Module, kernel: tile.KernelOp, target: CpuTarget) -> None:
    """Add the function of a kernel to a module."""
    module.lacks = target.lacks
    KernelCodegen(module, kernel, target).emit()


class KernelCodegen:
    """Makes the function of one kernel."""

    def __init__(self, module: Module, kernel: tile.KernelOp, target: CpuTarget) -> None:
        self.module = module
        self.kernel = kernel
        self.target = target
        self.scalars: dict[SSAValue, V] = {}
        self.pointers: dict[SSAValue, V] = {}
        self.buffers: dict[SSAValue, Buffer] = {}
        self.accesses: dict[Operation, Access] = {}
        self.limits = Limits()
        self.neighbours = Neighbours()
        self.order = MemoryOrder.of(kernel)
        self.written = "groups" in kernel.attributes
        self.fixed: dict[SSAValue, V] = {}
        """Tiles without axes: each is computed once, where it stands."""
        self.divisors: dict[SSAValue, Divisor] = {}
        """Of quotients whose divisor is the same all along the line that code is being made for."""

    def emit(self) -> None:
        name = self.kernel.sym_name.data
        self.module.made_for(self.kernel.location)
        arguments = self.kernel.block.args
        params = [(self._parameter(argument), f"a{i}") for i, argument in enumerate(arguments)]
        self.b = b = Function(
            self.module,
            f"{name}.programs",
            [*params, ("i64", "begin"), ("i64", "end")],
            attributes="nounwind alwaysinline",
            linkage="internal",
            hides_counters=not self.target.is_x86,
        )
        for argument, value in zip(arguments, b.args, strict=False):
            match argument.type:
                case tile.PointerType():
                    self.pointers[argument] = value
                case tile.TileType():
                    self.fixed[argument] = value
                case _:
                    self.scalars[argument] = value
        begin, end = b.args[-2:]
        with b.loop(begin, end, i64(1)) as program:
            self._place_program(program)
            self.block(list(self.kernel.block.ops))
        b.finish()
        self._entry(name)

    def _entry(self, name: str) -> None:
        self.module.made_for(self.kernel.location)
        entry = Function(self.module, name, [("ptr", "args"), ("i64", "begin"), ("i64", "end")])
        values: list[V] = []
        for i, argument in enumerate(self.kernel.block.args):
            word = entry.gep(entry.args[0], i64(i), "i64")
            match argument.type:
                case tile.PointerType():
                    values.append(entry.load("ptr", word, 8))
                case tile.TileType() as type_ if type_.dtype.kind == "bool":
                    values.append(entry.convert("trunc", entry.load("i8", word, 8), "i1"))
                case tile.TileType() as type_:  # the first bytes of the word
                    values.append(entry.load(scalar_type(type_.dtype), word, 8))
                case _:
                    values.append(entry.load("i64", word, 8))
        entry.do(f"call void @{name}.programs({', '.join(map(str, [*values, *entry.args[1:]]))})")
        entry.finish()

    def _parameter(self, argument: SSAValue) -> str:
        """The LLVM type of an argument. Pointers to memory that no other argument points to are marked."""
        if isinstance(argument.type, tile.TileType):
            return scalar_type(argument.type.dtype)
        if not isinstance(argument.type, tile.PointerType):
            return "i64"
        groups = self.order.groups
        if any(isinstance(op, pointer_ops.PointerOp) for op in self.kernel.walk()):
            return "ptr"  # what is made from a number may point anywhere
        shared = argument in groups and list(groups.values()).count(groups[argument]) > 1
        return "ptr" if shared else "ptr noalias"

    def _place_program(self, program: V) -> None:
        """Turn the flat program number into one number an axis of the grid."""
        b = self.b
        sizes = [arg for arg in self.kernel.block.args if arg in self.scalars]
        symbols = {name: self.scalars[arg] for name, arg in zip(self.kernel.size_names, sizes, strict=True)}
        grid = self.kernel.grid.data
        numbers: list[V] = []
        rest = program
        for position in range(len(grid) - 1, 0, -1):
            size = b.size(grid[position], symbols)
            quotient = b.binary("udiv", rest, size)
            numbers.append(b.sub(rest, b.mul(quotient, size)))
            rest = quotient
        numbers.append(rest)
        numbers.reverse()
        for op in self.kernel.block.ops:
            if isinstance(op, tile.ProgramOp):
                self.scalars[op.out] = numbers[op.axis.value.data]

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, size: Size, operands: Sequence[SSAValue]) -> V:
        return self.b.size(size, {f"d{i}": self.scalars[operand] for i, operand in enumerate(operands)})

    def extents(self, value: SSAValue) -> tuple[V, ...]:
        """How many elements a tile has along each axis. Axes of capacity 1 have one."""
        sizes = tile.tile_type(value).sizes
        return tuple(
            self.least([self.size(*limit) for limit in self.limits.of(value, axis)], size)
            for axis, size in enumerate(sizes)
        )

    def least(self, candidates: Sequence[V], capacity: int) -> V:
        """The smallest of several extents; one that equals the capacity is no constraint."""
        unique = {v.name: v for v in candidates if v.name != str(capacity)}
        result: V | None = None
        for value in unique.values():
            result = value if result is None else self.b.intrinsic("smin", result, value)
        return result if result is not None else i64(capacity)

    # -- blocks ----------------------------------------------------------------------------------------------------

    def block(self, operations: Sequence[Operation | Fill]) -> None:
        for step in form_steps(operations, self.order):
            outer = self.b.made_for(origin_of(step))
            match step:
                case FusedLoop():
                    emit_loops(self, step)
                case tile.GatherOp() if step.out in self.order.early:
                    self.materialise(step.out)
                case tile.ForOp() if not self.written:
                    self.for_loop(step)
                case tile.DotOp():
                    self.dot(step)
                case tile.ScatterOp() if step.unordered is None:
                    emit_scatter(self, step)
                case tile.SortOp():
                    emit_sort(self, step)
                case _:
                    emit_written(self, step)
            self.b.made_for(outer)

    def for_loop(self, op: tile.ForOp) -> None:
        b = self.b
        carried = op.block.args[1:]
        slots = [Buffer.allocate(b, t.sizes, t.dtype) for t in map(tile.tile_type, carried)]
        self.block([Fill(value, slot) for value, slot in zip(op.initial, slots, strict=True)])
        for argument, result, slot in zip(carried, op.results, slots, strict=True):
            self.buffers[argument] = self.buffers[result] = slot
        yielded = op.block.last_op
        assert isinstance(yielded, tile.YieldOp)
        for value, argument, slot in zip(yielded.operands, carried, slots, strict=True):
            if accumulates_in_place(value, argument):
                self.buffers[value] = slot
        for inner in op.block.walk():
            if isinstance(inner, tile.DotOp):
                for value in buffered_operands(self, inner):
                    if not op.is_ancestor(value.owner):
                        self.materialise(value)
        lower, upper, step = (self.size(size, op.indices) for size in op.bounds.data)
        with b.loop(lower, upper, step) as variable:
            self.scalars[op.block.args[0]] = variable
            fills = [
                Fill(value, slot)
                for value, slot in zip(yielded.operands, slots, strict=True)
                if self.buffers.get(value) != slot
            ]
            self.block([*op.block.ops, *_ordered(fills)])

    # -- values ------------------------------------------------------------------------------------------------------

    def write(self, buffer: Buffer, value: V, here: Position) -> None:
        lanes = here.lanes if here.index and buffer.shape[here.inner] != 1 else 1
        write_along(self.b, buffer, value, here, lanes)

    def prepare(self, values: Sequence[SSAValue], sinks: Sequence[Sink | Operation] = ()) -> None:
        """Evaluate the addresses that a loop needs before it starts."""
        for sink in sinks:
            if isinstance(sink, tile.StoreOp):
                self.accesses[sink] = self._access(sink)
        for root in values:
            prepare_views(self, root)
            for value in lazy_closure(root):
                if isinstance(value, OpResult) and isinstance(value.op, tile.LoadOp):
                    self.accesses[value.op] = self._access(value.op)

    def _access(self, op: tile.LoadOp | tile.StoreOp) -> Access:
        pointer_type = op.pointer.type
        assert isinstance(pointer_type, tile.PointerType)
        dtype = pointer_type.dtype
        start, memory = op.offset.data[0], memory_type(dtype)
        ahead = constant_term(start)
        origin = self.b.gep(self.pointers[op.pointer], self.size(start - ahead, op.indices), memory)
        base = self.b.gep(origin, i64(ahead), memory)
        strides = tuple(self.size(stride, op.indices) for stride in op.strides.data)
        return Access(base, strides, dtype, origin, ahead)

    def at(self, value: SSAValue, here: Position, kept: set[SSAValue] = frozenset()) -> V:  # type: ignore[assignment]
        """The elements of a tile at a position: a vector if the tile moves along the inner axis, else a scalar."""
        if value in self.fixed:
            return self.fixed[value]
        if value in here.values:
            return here.values[value]
        if value in self.buffers and value not in kept:
            buffer = self.buffers[value]
            lanes = here.lanes if here.index and buffer.shape[here.inner] != 1 else 1
            result = read_along(self.b, buffer, here, lanes)
        else:
            outer = self.b.made_for(value.owner.location if isinstance(value, OpResult) else None)
            result = self._compute(value, here, kept)
            if value in kept:
                self.write(self.buffers[value], result, here)
            self.b.made_for(outer)
        here.values[value] = result
        return result

    def _compute(self, value: SSAValue, here: Position, kept: set[SSAValue]) -> V:
        b = self.b
        assert isinstance(value, OpResult), value
        type_ = tile.tile_type(value)
        lanes = here.lanes if type_.sizes and type_.sizes[here.inner] != 1 else 1
        match value.op:
            case tile.ConstantOp() as op:
                return const(from_attribute(op.value), scalar_type(type_.dtype))  # type: ignore[arg-type]
            case tile.LoadOp() as op:
                return self._load(self.accesses[op], here, lanes)
            case tile.PositionOp() as op:
                return self._position(op, here, lanes)
            case tile.GatherOp() as op:
                return emit_gather(self, op, here, kept)
            case collective_ops.ViewOp() as op:
                return emit_view(self, op, here, kept)
            case collective_ops.TakeOp() as op:
                return emit_take(self, op, here, kept)
            case tile.MapOp() as op if op.function.data == "select" and (known := here.known(op.args[0])) is not None:
                return b.splat(self.at(op.args[1 if known else 2], here, kept), lanes)
            case tile.MapOp() as op if value in self.divisors and here.lanes > 1:
                return self.divisors[value].divide(b, b.splat(self.at(op.args[0], here, kept), here.lanes))
            case tile.MapOp() as op if (clamped := self._clamped(op, kept)) is not None:
                return clamped.emit(b, self.at(clamped.value, here, kept))
            case tile.MapOp() as op:
                args = [self.at(arg, here, kept) for arg in op.args]
                wide = max(arg.lanes for arg in args)
                return self._map(op, [b.splat(arg, wide) for arg in args])
            case op:
                raise LoweringError(f"{op.name} is not computed element by element")

    def _clamped(self, op: tile.MapOp, kept: set[SSAValue]) -> ClampedCast | None:
        found = ClampedCast.of(op)
        stored = found is not None and any(each in self.buffers or each in kept for each in found.between)
        return None if stored else found

    def _map(self, op: tile.MapOp, args: list[V]) -> V:
        function = op.function.data
        operand = tile.tile_type(op.args[-1]).dtype
        if function == "cast":
            source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
            assert isinstance(source, DType) and isinstance(target, DType)
            if "rounding" in op.attributes and source.is_float and target.is_float:
                return truncate_to(self.b, args[0], target)
            return emit_cast(self.b, args[0], source, target)
        if function == "bitcast":
            source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
            assert isinstance(source, DType) and isinstance(target, DType)
            raw = store_convert(self.b, args[0], source)
            return load_convert(self.b, self.b.bitcast(raw, vector(memory_type(target), raw.lanes)), target)
        if args[0].element == "float" and meets_a_rounding(op):
            return self.b.binary(f"f{function}", args[0], args[1])
        return emit_function(self.b, function, args, operand)

    def _offset(self, strides: Sequence[V], here: Position) -> V:
        total = i64(0)
        for stride, position in zip(strides, here.index, strict=True):
            total = self.b.add(total, self.b.mul(stride, position))
        return total

    def _load(self, access: Access, here: Position, lanes: int) -> V:
        b, memory = self.b, memory_type(access.dtype)
        # What is constant comes last: it is part of the instruction then.
        address = b.gep(b.gep(access.origin, self._offset(access.strides, here), memory), i64(access.ahead), memory)
        raw = load_strided(b, memory, address, access.strides[here.inner], lanes, access.dtype.bytes)
        return load_convert(b, raw, access.dtype)

    def store(self, sink: tile.StoreOp, value: V, here: Position) -> None:
        b, access = self.b, self.accesses[sink]
        memory = memory_type(access.dtype)
        raw = store_convert(b, value, access.dtype)
        address = b.gep(access.base, self._offset(access.strides, here), memory)
        stride = access.strides[here.inner]
        if here.lanes == 1 or stride.name == "1":
            b.store(b.splat(raw, here.lanes), address, access.dtype.bytes)
            return
        for lane in range(here.lanes):
            element = b.extract(raw, lane) if raw.lanes > 1 else raw
            b.store(element, b.gep(address, b.mul(stride, i64(lane)), memory), access.dtype.bytes)

    def _position(self, op: tile.PositionOp, here: Position, lanes: int) -> V:
        b = self.b
        offset = self.size(op.offset.data[0], op.indices)
        strides = [self.size(stride, op.indices) for stride in op.strides.data]
        element = scalar_type(tile.tile_type(op.out).dtype)
        start = _narrowed(b, b.add(offset, self._offset(strides, here)), element)
        if lanes == 1:
            return start
        steps = b.iota(lanes, element)
        if strides[here.inner].name != "1":
            steps = b.binary("mul", steps, b.splat(_narrowed(b, strides[here.inner], element), lanes))
        return b.binary("add", b.splat(start, lanes), steps)

    # -- single ops ------------------------------------------------------------------------------------------------

    def dot(self, op: tile.DotOp) -> None:
        self.prepare([op.a, op.b])
        emit_dot(self, op)

    def materialise(self, value: SSAValue) -> Buffer:
        """Compute a whole tile into a buffer, unless it is in one."""
        if value not in self.buffers:
            type_ = tile.tile_type(value)
            buffer = Buffer.allocate(self.b, type_.sizes, type_.dtype)
            self.block([Fill(value, buffer)])
            self.buffers[value] = buffer
        return self.buffers[value]


def _ordered(fills: Sequence[Fill]) -> list[Fill]:
    """Fills of carried tiles in an order in which none is overwritten while another still reads it.

    A tile is computed from others of its shape, or with axes of size 1 in place of some of its own: larger ones go
    first. Those of one shape share a loop, which computes all values of a position before it writes them.
    """
    return sorted(fills, key=lambda fill: (-prod(fill.buffer.shape), fill.buffer.shape))


def _narrowed(b: Function, value: V, element: str) -> V:
    """A 64-bit integer as an integer of another type."""
    return b.convert("trunc", value, element) if value.name.startswith("%") else V(element, value.name)
