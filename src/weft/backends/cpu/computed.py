"""Reads and writes at computed indices.

Where the places lie at even distances along the vector axis (rows of an embedding, windows, what is padded), whole
vectors are read and written; everything else goes element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.clusters import FusedLoop, sink_value
from weft.backends.cpu.lookups import ZERO_BYTES, at_lane, gathered, keeps, looked_up, moves, pointer_dtype, zeros
from weft.backends.cpu.mask_ranges import parts_of
from weft.backends.cpu.memory_order import lazy_closure
from weft.backends.cpu.neighbours import source_axis
from weft.backends.cpu.position import Position, lanes_for, load_strided, walk
from weft.backends.llvm.builder import Function, mangle
from weft.backends.llvm.cast import load_convert, store_convert
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, i64, memory_type, scalar_type, vector
from weft.ir.attributes import from_attribute
from weft.ir.types import boolean
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_OF_BOOLEANS = {"add": "or", "mul": "and"}
_WRITTEN_OUT = 4
"""Lanes that are read where they are needed; the reading of more is a function."""
_BYTES_AHEAD, _MOST_AHEAD = 2048, 8
"""How far ahead rows are asked for: bytes that are read before, and rows at most."""


# -- reading ---------------------------------------------------------------------------------------------------------


def emit_gather(codegen: KernelCodegen, op: tile.GatherOp, here: Position, kept: set[SSAValue]) -> V:
    """The elements of a gather at a position."""
    inner = here.inner
    hiding = _open_parts(op.mask, here, kept)
    if hiding is None:
        return _other(codegen, op, here.lanes if moves(codegen, op.out, inner) else 1)
    moving = here.lanes > 1 and moves(codegen, op.offsets, inner)
    step = codegen.neighbours.step_along(op.offsets, inner) if moving else None
    if step is None and moving and codegen.written and _is_arithmetic(op.offsets):
        return _perhaps_whole(codegen, op, here, kept)
    if step is None:
        mask = _mask(codegen, op, here, kept)
        if moving and here.lanes > _WRITTEN_OUT and (mask is None or op.inside is not None):
            return _chosen(codegen, op, looked_up(codegen, op, here, kept), mask)
        return _lane_by_lane(codegen, op, codegen.at(op.offsets, here, kept), mask)
    if any(moves(codegen, mask, inner) for mask in hiding):
        return _partly_masked(codegen, op, here, kept, step)
    start = at_lane(codegen, op.offsets, here, kept, 0)
    return _whole(codegen, op, start, here.lanes, step, _mask(codegen, op, here, kept))


def _open_parts(mask: SSAValue | None, here: Position, kept: set[SSAValue]) -> list[SSAValue] | None:
    """The masks that have to hold as well for one to hold, beside what is known of it; None if it does not hold."""
    if mask is None or (known := here.known(mask)) is True:
        return []
    if known is False:
        return None
    result: list[SSAValue] = []
    parts = () if mask in kept else parts_of(mask)
    for part in parts:
        if (found := _open_parts(part, here, kept)) is None:
            return None
        result += found
    return result if parts and result != list(parts) else [mask]


def _mask(codegen: KernelCodegen, op: tile.GatherOp, here: Position, kept: set[SSAValue]) -> V | None:
    parts = [codegen.at(part, here, kept) for part in _open_parts(op.mask, here, kept) or ()]
    if not parts:
        return None
    lanes = max(part.lanes for part in parts)
    return all_of(codegen.b, [codegen.b.splat(part, lanes) for part in parts])


def _lane_by_lane(codegen: KernelCodegen, op: tile.GatherOp, offsets: V, mask: V | None) -> V:
    """Where the mask is false a zero is read instead."""
    b, dtype = codegen.b, pointer_dtype(op.pointer)
    memory = memory_type(dtype)
    width = max(offsets.lanes, mask.lanes if mask else 1)
    if width > _WRITTEN_OUT and offsets.lanes == width:
        return _chosen(codegen, op, load_convert(b, gathered(codegen, op, offsets, mask), dtype), mask)
    raw = V(vector(memory, width), "poison")
    for lane in range(width):
        address = pointer_address(codegen, op.pointer, b.extract(offsets, lane))
        if mask is not None:
            address = b.select(b.extract(mask, lane), address, zeros(codegen))
        element = b.load(memory, address, dtype.bytes)
        raw = b.insert(raw, element, lane) if width > 1 else element
    return _chosen(codegen, op, load_convert(b, raw, dtype), mask)


def _whole(codegen: KernelCodegen, op: tile.GatherOp, start: V, lanes: int, step: int, mask: V | None = None) -> V:
    """A whole vector, or none of it."""
    b, dtype = codegen.b, pointer_dtype(op.pointer)
    address, stride = pointer_address(codegen, op.pointer, start), i64(step)
    if mask is not None:
        address = b.select(mask, address, zeros(codegen))
        if abs(step) * lanes * dtype.bytes > ZERO_BYTES or step < 0:
            stride = b.select(mask, stride, i64(0))
    raw = load_strided(b, memory_type(dtype), address, stride, lanes, dtype.bytes)
    # Where the mask is false zeros are read, which may be what is asked for.
    is_chosen = dtype.is_float and from_attribute(op.other) == 0
    return _chosen(codegen, op, load_convert(b, raw, dtype), None if is_chosen else mask)


def _is_arithmetic(offsets: SSAValue) -> bool:
    """Whether offsets are computed from positions alone: those mostly lie side by side, if not provably."""
    reads = (tile.GatherOp, collective_ops.TakeOp)
    return not any(isinstance(v, OpResult) and isinstance(v.op, reads) for v in lazy_closure(offsets))


def _perhaps_whole(codegen: KernelCodegen, op: tile.GatherOp, here: Position, kept: set[SSAValue]) -> V:
    """Elements that lie side by side, or do not: that is looked at when the kernel runs."""
    b, lanes = codegen.b, here.lanes
    offsets = b.splat(codegen.at(op.offsets, here, kept), lanes)
    mask = _mask(codegen, op, here, kept)
    start = b.extract(offsets, 0)
    line = b.binary("add", b.splat(start, lanes), b.iota(lanes, offsets.element))
    same = b.icmp("eq", offsets, line)
    if mask is not None and mask.lanes > 1:
        same = b.binary("and", same, mask)
    whole = b.call(f"llvm.vector.reduce.and.{mangle(same.type)}", "i1", same)
    if mask is not None and mask.lanes == 1:
        whole = b.binary("and", whole, mask)
    register = vector(scalar_type(tile.tile_type(op.out).dtype), lanes)
    slot = b.alloca(register)
    together, apart, after = b.label("together"), b.label("apart"), b.label("after")
    b.branch_if(whole, together, apart)
    b.start(together)
    b.store(_whole(codegen, op, start, lanes, 1), slot, 1)
    b.branch(after)
    b.start(apart)
    b.store(b.splat(_lane_by_lane(codegen, op, offsets, mask), lanes), slot, 1)
    b.branch(after)
    b.start(after)
    return b.load(register, slot, 1)


def _partly_masked(codegen: KernelCodegen, op: tile.GatherOp, here: Position, kept: set[SSAValue], step: int) -> V:
    """Elements at even distances of which some may be masked: a vector where none is, and nothing where all are."""
    b, lanes = codegen.b, here.lanes
    assert op.mask is not None
    start = at_lane(codegen, op.offsets, here, kept, 0)
    parts = None if keeps(codegen, op.mask, here, kept) else conjuncts(codegen, op.mask, here.inner)
    register = vector(scalar_type(tile.tile_type(op.out).dtype), lanes)
    slot = b.alloca(register)
    whole, some, part, after = (b.label(name) for name in ("whole", "some", "part", "after"))
    if parts is None:
        mask = codegen.at(op.mask, here, kept)
        b.branch_if(b.call(f"llvm.vector.reduce.and.{mangle(mask.type)}", "i1", mask), whole, part)
    else:
        mask = None
        ends = [tuple(at_lane(codegen, p, here, kept, lane) for lane in (0, lanes - 1)) for p in parts]
        b.branch_if(all_of(b, [end for pair in ends for end in pair]), whole, some)
        b.start(some)
        b.store(_other(codegen, op, lanes), slot, 1)
        # A comparison that holds at one end at least, for each of them: otherwise it holds nowhere in between.
        b.branch_if(all_of(b, [b.binary("or", first, last) for first, last in ends]), part, after)
    b.start(whole)
    b.store(_whole(codegen, op, start, lanes, step), slot, 1)
    b.branch(after)
    b.start(part)
    if mask is None:
        # What is computed on this way is not there on the others.
        mask = codegen.at(op.mask, here.copy(), kept)
    steps = b.binary("mul", b.iota(lanes), b.splat(i64(step), lanes))
    offsets = b.binary("add", b.splat(start, lanes), steps)
    b.store(_lane_by_lane(codegen, op, offsets, mask), slot, 1)
    b.branch(after)
    b.start(after)
    return b.load(register, slot, 1)


def conjuncts(codegen: KernelCodegen, mask: SSAValue, axis: int) -> list[SSAValue] | None:
    """The comparisons that a mask is the conjunction of, if each changes at most once along an axis."""
    match mask.op if isinstance(mask, OpResult) else None:
        case tile.MapOp() as op if op.function.data == "and":
            left, right = (conjuncts(codegen, arg, axis) for arg in op.args)
            return None if left is None or right is None else [*left, *right]
        case tile.MapOp() as op if op.function.data in ("lt", "le", "gt", "ge"):
            return [mask] if all(codegen.neighbours.step_along(arg, axis) is not None for arg in op.args) else None
        case collective_ops.ViewOp() as op if (source := source_axis(op, axis)) is not None:
            return [mask] if conjuncts(codegen, op.value, source) == [op.value] else None
        case _:
            return None if moves(codegen, mask, axis) else [mask]


def all_of(b: Function, conditions: Sequence[V]) -> V:
    """Whether all conditions hold."""
    first, *others = conditions
    for other in others:
        first = b.binary("and", first, other)
    return first


def _chosen(codegen: KernelCodegen, op: tile.GatherOp, value: V, mask: V | None) -> V:
    """What was read, or the other value where the mask is false."""
    if mask is None:
        return value
    return codegen.b.select(codegen.b.splat(mask, value.lanes), value, _other(codegen, op, value.lanes))


def _other(codegen: KernelCodegen, op: tile.GatherOp, lanes: int) -> V:
    other = from_attribute(op.other)
    assert isinstance(other, float | int)
    return codegen.b.splat(const(other, scalar_type(tile.tile_type(op.out).dtype)), lanes)


def pointer_address(codegen: KernelCodegen, pointer: SSAValue, offset: V) -> V:
    memory = memory_type(pointer_dtype(pointer))
    return codegen.b.emit("ptr", f"getelementptr {memory}, {codegen.pointers[pointer]}, {offset}")


@dataclass(frozen=True)
class RowAhead:
    """A row that will be read soon, at a place that only data tell: the processor cannot guess it."""

    start: V
    memory: str

    def prefetch(self, b: Function, place: V) -> None:
        """Bring what lies at a place of the row near."""
        b.prefetch(b.gep(self.start, place, self.memory))


def rows_ahead(
    codegen: KernelCodegen, cluster: FusedLoop, extents: Sequence[V], index: Sequence[V], inner: int
) -> list[RowAhead]:
    """The rows that gathers will read a few turns of the next outer loop later, in a nest that stands at an index."""
    b, shape = codegen.b, cluster.shape
    axis = max((a for a, size in enumerate(shape) if size > 1 and a != inner), default=None)
    if axis is None:
        return []
    rows: list[RowAhead] = []
    for value in {v: None for sink in cluster.sinks for v in lazy_closure(sink_value(sink))}:
        if value in codegen.buffers or not (isinstance(value, OpResult) and isinstance(value.op, tile.GatherOp)):
            continue
        op, dtype = value.op, pointer_dtype(value.op.pointer)
        if codegen.neighbours.step_along(op.offsets, inner) != 1 or not _is_read(codegen, op.offsets, axis):
            continue
        # What is kept is not there yet of later rows.
        if cluster.keeps and any(v in cluster.keeps for v in lazy_closure(op.offsets)):
            continue
        turns = max(1, min(_MOST_AHEAD, _BYTES_AHEAD // (shape[inner] * dtype.bytes)))
        then = b.intrinsic("smin", b.add(index[axis], i64(turns)), b.sub(extents[axis], i64(1)))
        place = tuple(then if a == axis else i64(0) if a == inner else v for a, v in enumerate(index))
        start = pointer_address(codegen, op.pointer, codegen.at(op.offsets, Position(place, inner, 1)))
        rows.append(RowAhead(start, memory_type(dtype)))
    return rows


def _is_read(codegen: KernelCodegen, offsets: SSAValue, axis: int) -> bool:
    """Whether offsets depend on what is read from memory, another element for each place of an axis."""
    reads = (tile.LoadOp, tile.GatherOp)
    read = [v for v in lazy_closure(offsets) if isinstance(v, OpResult) and isinstance(v.op, reads)]
    return any(moves(codegen, v, axis) for v in read)


# -- writing ---------------------------------------------------------------------------------------------------------


def emit_scatter(codegen: KernelCodegen, op: tile.ScatterOp) -> None:
    """Element after element, in order, since two may go to one place; neighbouring places are written at once."""
    b = codegen.b
    values = [v for v in op.operands if isinstance(v.type, tile.TileType)]
    codegen.prepare(values)
    shape = [max(sizes) for sizes in zip(*(tile.tile_type(v).sizes for v in values), strict=True)]
    extents = [
        codegen.least([codegen.extents(v)[a] for v in values if tile.tile_type(v).sizes[a] != 1], size)
        for a, size in enumerate(shape)
    ]
    inner = max((a for a, size in enumerate(shape) if size > 1), default=len(shape) - 1)
    side_by_side = shape[inner] > 1 and codegen.neighbours.step_along(op.offsets, inner) == 1
    dense = side_by_side and not moves(codegen, op.mask, inner)
    with ExitStack() as loops:
        index = [i64(0)] * len(shape)
        for axis, size in enumerate(shape):
            if size > 1 and not (dense and axis == inner):
                index[axis] = loops.enter_context(b.loop(i64(0), extents[axis], i64(1)))
        if not dense:
            _write(codegen, op, Position(tuple(index), inner, 1))
            return

        # What is the same all along the axis is computed before it, and looked at once whether it is written at all.
        first = Position(tuple(index), inner, 1)
        if op.mask is not None:
            loops.enter_context(b.when(codegen.at(op.mask, first)))
        for value in {**lazy_closure(op.offsets), **lazy_closure(op.value)}:
            if not moves(codegen, value, inner):
                codegen.at(value, first)
        steady = {v: known for v, known in first.values.items() if not moves(codegen, v, inner)}

        def turn(start: V, lanes: int) -> None:
            place = tuple(start if a == inner else v for a, v in enumerate(index))
            _add(codegen, op, Position(place, inner, lanes, dict(steady)))

        lanes = lanes_for(codegen.target, tile.tile_type(op.value).dtype.bits, extents[inner])
        walk(b, extents[inner], lanes, turn)


def _write(codegen: KernelCodegen, op: tile.ScatterOp, here: Position) -> None:
    with ExitStack() as guarded:
        if op.mask is not None:
            guarded.enter_context(codegen.b.when(codegen.at(op.mask, here)))
        _add(codegen, op, here)


def _add(codegen: KernelCodegen, op: tile.ScatterOp, here: Position) -> None:
    b, dtype = codegen.b, pointer_dtype(op.pointer)
    memory = memory_type(dtype)
    address = pointer_address(codegen, op.pointer, at_lane(codegen, op.offsets, here, set(), 0))
    value = b.splat(codegen.at(op.value, here), here.lanes)
    if op.kind.data != "assign":
        old = load_convert(b, b.load(vector(memory, here.lanes), address, dtype.bytes), dtype)
        function = _OF_BOOLEANS.get(op.kind.data, op.kind.data) if dtype == boolean else op.kind.data
        value = emit_function(b, function, [old, value], tile.tile_type(op.value).dtype)
    b.store(store_convert(b, value, dtype), address, dtype.bytes)
