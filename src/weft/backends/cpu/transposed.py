"""Loops that read along one axis of a tile and write along another: squares of elements turn in registers.

    read:   a0 a1 a2 a3        write:  a0 b0 c0 d0
            b0 b1 b2 b3   →            a1 b1 c1 d1
            ...                        ...

Without this, one of the two would go element by element: where channels that lie innermost leave for memory in which
they lie apart, and the other way.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.clusters import Fill, FusedLoop, Sink, lazy_closure, sink_value
from weft.backends.cpu.mask_ranges import stretches
from weft.backends.cpu.position import Position, lanes_for, walk
from weft.backends.llvm.cast import store_convert
from weft.backends.llvm.values import V, i64, memory_type, vector
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_SIDE = 4


def transposed_axes(codegen: KernelCodegen, cluster: FusedLoop) -> tuple[int, int] | None:
    """The axis along which a cluster reads and that along which it writes, if they differ."""
    wide = [axis for axis, size in enumerate(cluster.shape) if size >= _SIDE]
    if len(wide) < 2 or cluster.keeps or any(isinstance(sink, tile.ReduceOp) for sink in cluster.sinks):
        return None
    written = {_written_along(sink) for sink in cluster.sinks}
    across = written.pop()
    if written or across not in wide:
        return None
    # Parts of the written axis that come from different places are loops of their own, with nothing to choose.
    if len(stretches([sink_value(sink) for sink in cluster.sinks], across, cluster.shape[across])) > 1:
        return None
    reads: dict[int, int] = {}
    for value in {v: None for sink in cluster.sinks for v in lazy_closure(sink_value(sink))}:
        axis = _read_along(codegen, value)
        # What is the same all along the written axis is read once for it: a row's index among those of other rows.
        if axis is not None and tile.tile_type(value).sizes[across] > 1:
            reads[axis] = reads.get(axis, 0) + 1
    inner = max((axis for axis in wide if axis != across), key=lambda axis: reads.get(axis, 0))
    return (inner, across) if reads.get(inner, 0) > reads.get(across, 0) else None


def _written_along(sink: Sink) -> int | None:
    if isinstance(sink, Fill):
        return len(sink.buffer.shape) - 1
    assert isinstance(sink, tile.StoreOp)
    steps = sink.strides.data
    whole = sink.spread is None and 1 not in tile.tile_type(sink.value).sizes
    return steps.index(1) if whole and 1 in steps else None


def _read_along(codegen: KernelCodegen, value: SSAValue) -> int | None:
    """The axis along which a value's elements are neighbours in memory."""
    sizes = tile.tile_type(value).sizes
    if value in codegen.buffers:
        return len(sizes) - 1 if sizes[-1] > 1 else None
    match value.op if isinstance(value, OpResult) else None:
        case tile.LoadOp() as op:
            return next((axis for axis, step in enumerate(op.strides.data) if step == 1 and sizes[axis] > 1), None)
        case tile.GatherOp() as op:
            step_along = codegen.neighbours.step_along
            return next((a for a, size in enumerate(sizes) if size > 1 and step_along(op.offsets, a) == 1), None)
        case _:
            return None


def emit_transposed(codegen: KernelCodegen, cluster: FusedLoop, extents: list[V], inner: int, across: int) -> None:
    """The loops of a cluster: vectors along `inner`, four of them side by side along `across`."""
    b = codegen.b
    widest = max(tile.tile_type(sink_value(sink)).dtype.bits for sink in cluster.sinks)
    lanes = lanes_for(codegen.target, widest, extents[inner])
    index = [i64(0)] * len(cluster.shape)

    def place(start: V, line: V) -> tuple[V, ...]:
        return tuple(start if a == inner else line if a == across else v for a, v in enumerate(index))

    def lines(first: V, count: int) -> None:
        def turn(start: V, width: int) -> None:
            here = [Position(place(start, b.add(first, i64(j))), inner, width) for j in range(count)]
            values = [[codegen.at(sink_value(sink), each) for each in here] for sink in cluster.sinks]
            for sink, columns in zip(cluster.sinks, values, strict=True):
                if count == _SIDE and width % _SIDE == 0:
                    _write_turned(codegen, sink, [b.splat(v, width) for v in columns], here[0], across)
                    continue
                for each, value in zip(here, columns, strict=True):
                    _write(codegen, sink, value, each)

        walk(b, extents[inner], lanes, turn, 1)

    with ExitStack() as loops:
        for axis, size in enumerate(cluster.shape):
            if axis not in (inner, across) and size > 1:
                index[axis] = loops.enter_context(b.loop(i64(0), extents[axis], i64(1)))
        extent = extents[across]
        known = not extent.name.startswith("%")
        whole = i64(int(extent.name) & -_SIDE) if known else b.binary("and", extent, i64(-_SIDE))
        with b.loop(i64(0), whole, i64(_SIDE)) as first:
            lines(first, _SIDE)
        if whole != extent:
            with b.loop(whole, extent, i64(1)) as first:
                lines(first, 1)


def _write(codegen: KernelCodegen, sink: Sink, value: V, here: Position) -> None:
    if isinstance(sink, tile.StoreOp):
        codegen.store(sink, value, here)
        return
    assert isinstance(sink, Fill)
    b = codegen.b
    for lane in range(here.lanes):
        element = b.extract(value, lane) if value.lanes > 1 else value
        sink.buffer.write(b, element, _moved(codegen, here, lane))


def _moved(codegen: KernelCodegen, here: Position, lane: int) -> list[V]:
    return [codegen.b.add(v, i64(lane)) if a == here.inner else v for a, v in enumerate(here.index)]


def _write_turned(codegen: KernelCodegen, sink: Sink, columns: list[V], here: Position, across: int) -> None:
    """Write vectors along the inner axis, four neighbours of the other axis at a time."""
    b = codegen.b
    if isinstance(sink, tile.StoreOp):
        dtype = codegen.accesses[sink].dtype
        columns = [store_convert(b, column, dtype) for column in columns]
        if all(column.element == "i8" for column in columns):
            _write_bytes(codegen, sink, columns, here)
            return
    for start in range(0, here.lanes, _SIDE):
        for lane, row in enumerate(_turned(codegen, columns, start)):
            index = _moved(codegen, here, start + lane)
            if isinstance(sink, tile.StoreOp):
                b.store(row, _address(codegen, sink, index), codegen.accesses[sink].dtype.bytes)
            else:
                assert isinstance(sink, Fill)
                sink.buffer.write(b, row, index)


def _write_bytes(codegen: KernelCodegen, sink: tile.StoreOp, columns: list[V], here: Position) -> None:
    """Write four vectors of bytes across: each lane of one vector of words is the four neighbours of a place."""
    b = codegen.b
    words = vector("i32", here.lanes)
    word: V | None = None
    for place, column in enumerate(columns):
        wide = b.emit(words, f"zext {column} to {words}")
        if place:
            wide = b.binary("shl", wide, b.splat(V("i32", str(8 * place)), here.lanes))
        word = wide if word is None else b.binary("or", word, wide)
    assert word is not None, "four columns"
    for lane in range(here.lanes):
        b.store(b.extract(word, lane), _address(codegen, sink, _moved(codegen, here, lane)), 1)


def _address(codegen: KernelCodegen, sink: tile.StoreOp, index: list[V]) -> V:
    """Where an element lies."""
    b, access = codegen.b, codegen.accesses[sink]
    offset = i64(0)
    for stride, position in zip(access.strides, index, strict=True):
        offset = b.add(offset, b.mul(stride, position))
    return b.gep(access.base, offset, memory_type(access.dtype))


def _turned(codegen: KernelCodegen, columns: list[V], start: int) -> list[V]:
    """Four elements, from `start` on, of four vectors as four vectors across."""
    b, lanes = codegen.b, columns[0].lanes
    pairs: list[tuple[V, V]] = []
    for left, right in (columns[:2], columns[2:]):
        low = [start, lanes + start, start + 1, lanes + start + 1]
        pairs.append((b.shuffle(left, right, low), b.shuffle(left, right, [lane + 2 for lane in low])))
    result: list[V] = []
    for half in (0, 1):
        first, second = pairs[0][half], pairs[1][half]
        result += [b.shuffle(first, second, [0, 1, 4, 5]), b.shuffle(first, second, [2, 3, 6, 7])]
    return result
