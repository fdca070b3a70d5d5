"""Reductions and scans by any function, sorting and counting inside of tiles: loops over buffers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.clusters import Fill
from weft.backends.cpu.position import Position, lanes_for, walk
from weft.backends.llvm.builder import Function
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.values import V, const, i64, scalar_type, vector
from weft.ir.types import DType
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


def combined(
    codegen: KernelCodegen, op: collective_ops.FoldOp | collective_ops.ScanOp, left: Sequence[V], right: Sequence[V]
) -> list[V]:
    """What the op's block makes of two tuples of elements, or of vectors of them."""
    lanes = left[0].lanes
    here = Position((), 0, lanes, dict(zip(op.block.args, [*left, *right], strict=True)))
    return [codegen.b.splat(codegen.at(value, here), lanes) for value in op.yielded.operands]


def _lines(
    codegen: KernelCodegen, shape: Sequence[int], axis: int, bits: int, line: Callable[[list[V], int], None]
) -> None:
    """`line(index, lanes)` for all lines along an axis: several neighbouring ones at once, where there are."""
    b = codegen.b
    last = len(shape) - 1
    with ExitStack() as loops:
        index = [i64(0)] * len(shape)
        for position, size in enumerate(shape):
            if position not in (axis, last) and size > 1:
                index[position] = loops.enter_context(b.loop(i64(0), i64(size), i64(1)))
        if axis == last:
            line(index, 1)
            return

        def turn(start: V, lanes: int) -> None:
            index[last] = start
            line(list(index), lanes)

        walk(b, i64(shape[last]), lanes_for(codegen.target, bits, i64(shape[last])), turn, 1)


def _at(index: Sequence[V], axis: int, place: V) -> list[V]:
    return [place if a == axis else v for a, v in enumerate(index)]


def emit_fold(codegen: KernelCodegen, op: collective_ops.FoldOp) -> None:
    b, axis = codegen.b, op.axis.value.data
    sources = [codegen.materialise(value) for value in op.values]
    results = [Buffer.allocate(b, t.sizes, t.dtype) for t in map(tile.tile_type, op.results)]
    shape = sources[0].shape

    def line(index: list[V], lanes: int) -> None:
        slots = [b.alloca(vector(scalar_type(s.dtype), lanes)) for s in sources]
        for source, slot in zip(sources, slots, strict=True):
            b.store(source.read(b, _at(index, axis, i64(0)), lanes), slot, 1)
        with b.loop(i64(1), i64(shape[axis]), i64(1)) as k:
            right = [source.read(b, _at(index, axis, k), lanes) for source in sources]
            left = [b.load(value.type, slot, 1) for value, slot in zip(right, slots, strict=True)]
            for value, slot in zip(combined(codegen, op, left, right), slots, strict=True):
                b.store(value, slot, 1)
        for result, slot in zip(results, slots, strict=True):
            value = b.load(vector(scalar_type(result.dtype), lanes), slot, 1)
            result.write(b, value, _at(index, axis, i64(0)))

    _lines(codegen, shape, axis, max(s.dtype.bits for s in sources), line)
    codegen.buffers |= dict(zip(op.results, results, strict=True))


def emit_extremum(codegen: KernelCodegen, op: tile.ReduceOp) -> None:
    """The place of the first extremum along an axis, for several lines at once. NaN beats everything."""
    b, axis, kind = codegen.b, op.axis.value.data, op.kind.data
    source, type_ = codegen.materialise(op.value), tile.tile_type(op.out)
    result = Buffer.allocate(b, type_.sizes, type_.dtype)
    element, place = scalar_type(source.dtype), scalar_type(type_.dtype)

    def line(index: list[V], lanes: int) -> None:
        best, position = b.alloca(vector(element, lanes)), b.alloca(vector(place, lanes))
        b.store(source.read(b, _at(index, axis, i64(0)), lanes), best, 1)
        b.store(const(0, vector(place, lanes)), position, 1)
        with b.loop(i64(1), i64(source.shape[axis]), i64(1)) as k:
            value = source.read(b, _at(index, axis, k), lanes)
            old = b.load(value.type, best, 1)
            better = _surpasses(b, "gt" if kind == "argmax" else "lt", value, old, source.dtype)
            before = b.load(vector(place, lanes), position, 1)
            b.store(b.select(better, value, old), best, 1)
            b.store(b.select(better, b.splat(k, lanes), before), position, 1)
        result.write(b, b.load(vector(place, lanes), position, 1), _at(index, axis, i64(0)))

    _lines(codegen, source.shape, axis, 64, line)
    codegen.buffers[op.out] = result


def _surpasses(b: Function, comparison: str, value: V, other: V, dtype: DType) -> V:
    """Whether a comparison holds; NaN surpasses all that is not."""
    holds = emit_function(b, comparison, [value, other], dtype)
    if not dtype.is_float:
        return holds
    nan, known = (emit_function(b, "isnan", [v], dtype) for v in (value, other))
    return b.binary("or", holds, b.binary("and", nan, b.binary("xor", known, const(True, known.type))))


def emit_scan(codegen: KernelCodegen, op: collective_ops.ScanOp) -> None:
    b, axis = codegen.b, op.axis.value.data
    sources = [codegen.materialise(value) for value in op.values]
    results = [Buffer.allocate(b, s.shape, s.dtype) for s in sources]
    size = sources[0].shape[axis]

    def place(k: V) -> V:
        return b.sub(i64(size - 1), k) if op.reverse is not None else k

    def line(index: list[V], lanes: int) -> None:
        first = _at(index, axis, place(i64(0)))
        for source, result in zip(sources, results, strict=True):
            result.write(b, source.read(b, first, lanes), first)
        with b.loop(i64(1), i64(size), i64(1)) as k:
            before, here = _at(index, axis, place(b.sub(k, i64(1)))), _at(index, axis, place(k))
            left = [result.read(b, before, lanes) for result in results]
            right = [source.read(b, here, lanes) for source in sources]
            for result, value in zip(results, combined(codegen, op, left, right), strict=True):
                result.write(b, value, here)

    _lines(codegen, sources[0].shape, axis, max(s.dtype.bits for s in sources), line)
    codegen.buffers |= dict(zip(op.results, results, strict=True))


def emit_order(codegen: KernelCodegen, op: collective_ops.OrderOp) -> None:
    """Batcher's network of comparisons, which needs no more memory and no branches that depend on data."""
    b, type_ = codegen.b, tile.tile_type(op.out)
    result = Buffer.allocate(b, type_.sizes, type_.dtype)
    codegen.block([Fill(op.value, result)])
    *outer, count = type_.sizes
    with ExitStack() as loops:
        index = [loops.enter_context(b.loop(i64(0), i64(size), i64(1))) for size in outer]

        def exchange(low: V, high: V) -> None:
            a, c = (result.read(b, [*index, place], 1) for place in (low, high))
            first, second = (c, a) if op.descending is not None else (a, c)
            wrong = _surpasses(b, "gt", first, second, type_.dtype)
            result.write(b, b.select(wrong, c, a), [*index, low])
            result.write(b, b.select(wrong, a, c), [*index, high])

        for width, distance in _network(count):
            block = i64(2 * width)
            with b.loop(i64(distance % width), i64(count - distance), i64(2 * distance)) as start:
                stop = b.intrinsic("smin", i64(distance), b.sub(i64(count - distance), start))
                with b.loop(i64(0), stop, i64(1)) as step:
                    low = b.add(start, step)
                    high = b.add(low, i64(distance))
                    same = b.icmp("eq", b.binary("udiv", low, block), b.binary("udiv", high, block))
                    with b.when(same):
                        exchange(low, high)
    codegen.buffers[op.out] = result


def _network(count: int) -> Generator[tuple[int, int]]:
    """The rounds of an odd-even merge sort: sorted runs of `width` are merged, comparing at a `distance`."""
    width = 1
    while width < count:
        distance = width
        while distance:
            yield width, distance
            distance //= 2
        width *= 2


def emit_histogram(codegen: KernelCodegen, op: collective_ops.HistogramOp) -> None:
    b, type_ = codegen.b, tile.tile_type(op.out)
    result = Buffer.allocate(b, type_.sizes, type_.dtype)
    bins = type_.sizes[0]
    size = i64(bins * type_.dtype.bytes)
    b.call("llvm.memset.p0.i64", "void", result.pointer, V("i8", "0"), size, const(False, "i1"))
    codegen.prepare(list(op.operands))
    with b.loop(i64(0), i64(tile.tile_type(op.value).sizes[0]), i64(1)) as i:
        here = Position((i,), 0, 1)
        value = codegen.at(op.value, here)
        counted = b.icmp("ult", value, i64(bins))
        if op.mask is not None:
            counted = b.binary("and", counted, codegen.at(op.mask, here))
        with b.when(counted):
            result.write(b, b.add(result.read(b, [value], 1), V("i32", "1")), [value])
    codegen.buffers[op.out] = result


@contextmanager
def every_position(codegen: KernelCodegen, shape: Sequence[int]) -> Generator[Position]:
    """A loop over all positions of a shape, one by one."""
    with ExitStack() as loops:
        index = [loops.enter_context(codegen.b.loop(i64(0), i64(size), i64(1))) for size in shape]
        yield Position(tuple(index), max(len(index) - 1, 0), 1)
