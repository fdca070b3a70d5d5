"""Kernels that stream rows as LLVM code: who does what, the copies, and reading slots into a layout's registers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, Threads, converged, do, elected, i32, meet, short
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import load_chunk, load_words
from weft.backends.nvidia.emit.memory.unaligned_access import Chunk, load_unaligned
from weft.backends.nvidia.emit.reduce.cluster_reduce import Crossing
from weft.backends.nvidia.emit.warps.programmatic_launch import grid_dependency_wait
from weft.backends.nvidia.emit.warps.ring_buffers import Ring, expect, wait_for
from weft.backends.nvidia.ir.alignment import WIDEST
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.mma import PACKED
from weft.backends.nvidia.ir.row_streams import (
    ALIGNMENT,
    BulkCopyOp,
    BulkCopyRowsOp,
    PieceType,
    ReadOp,
    StreamOp,
    WaitKeptOp,
)
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(StreamOp)
def emit_stream(codegen: KernelCodegen, op: StreamOp) -> None:
    """The whole of a kernel: set up the barriers, then the last warp brings what the others work on."""
    b, cluster = codegen.b, codegen.launch.cluster
    warps, stages = codegen.launch.threads // WARP - 1, op.stages.value.data
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    warp = converged(b, "i32", "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", b.binary("lshr", thread, i32(5)))
    rank = b.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", "i32") if cluster > 1 else i32(0)
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    turn = i32(0) if cluster > 1 else None
    ring = Ring(stages, tuple(op.slots), base, i32(0), i32(0), turn)
    kept_start = _up(stages * (ring.stage_bytes + 16))
    kept = Ring(1, tuple(op.kept), b.add(base, i32(kept_start)), i32(0), i32(0))
    crossing_start = kept_start + _up(kept.stage_bytes + 16)
    with b.when(b.icmp("eq", thread, i32(0))):
        for number in range(stages):
            at = Ring(stages, ring.slots, base, i32(number), i32(0))
            _start(b, at.full(b), 1)
            _start(b, at.empty(b), warps)
        _start(b, kept.full(b), 1)
        for number in range(2):
            _start(b, b.add(base, i32(crossing_start + 8 * number)), 1)
        do(b, "fence.mbarrier_init.release.cluster;", "")
    meet(b, cluster)
    codegen.kept = kept
    # A copy's bytes depend on the block's place in the cluster: the last one may have less.
    codegen.threads = Threads(b, warps, b.binary("and", thread, i32(31)), warp, barrier_number=1, rank=rank)
    ring.arriving = _sum(b, [_bytes(codegen, piece) for piece in ring.slots if isinstance(piece, PieceType)])
    producing, consuming, after = b.label("producer"), b.label("consumer"), b.label("after")
    b.branch_if(b.icmp("eq", warp, i32(warps)), producing, consuming)
    b.start(producing)
    if codegen.launch.programmatic and op.early is None:
        grid_dependency_wait(b)
    with b.when(elected(b)):
        codegen.rings = [replace(ring, turn=None)]
        if kept.slots:
            expect(b, kept.full(b), _sum(b, [_bytes(codegen, p) for p in kept.slots if isinstance(p, PieceType)]))
        codegen.block(op.producer.block)
    b.branch(after)
    b.start(consuming)
    if codegen.launch.programmatic:
        grid_dependency_wait(b)
    codegen.threads.prepare([*codegen.layouts, *(replace(layout, blocks=()) for layout in codegen.layouts)])
    codegen.rings = [ring]
    codegen.crossing = Crossing(ring, base, crossing_start, op.crossing.value.data, cluster, warps)
    codegen.block(op.consumer.block)
    b.branch(after)
    b.start(after)
    if cluster > 1:  # nobody goes while others may still write to its memory
        meet(b, cluster)


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _start(b: Function, address: V, count: int) -> None:
    do(b, f"mbarrier.init.shared::cta.b64 [$0], {count};", "r", address)


def _sum(b: Function, values: list[V]) -> V:
    total = i32(0)
    for value in values:
        total = b.add(total, value)
    return total


def _bytes(codegen: KernelCodegen, piece: PieceType) -> V:
    """What this block has of a piece, and what comes with it."""
    b, size = codegen.b, piece.dtype.bytes
    if codegen.launch.cluster == 1 or piece.share >= piece.elements:
        return i32(_whole_chunks(min(piece.share, piece.elements) * size) + piece.beside)
    if piece.share * codegen.launch.cluster == piece.elements:
        return i32(piece.share * size + piece.beside)
    left = b.sub(i32(piece.elements), b.mul(codegen.threads.rank, i32(piece.share)))
    own = b.mul(b.intrinsic("smin", left, i32(piece.share)), i32(size))
    if piece.elements * size % WIDEST:
        own = b.binary("and", b.add(own, i32(WIDEST - 1)), i32(-WIDEST))
    own = b.add(own, i32(piece.beside))
    return b.select(b.icmp("sgt", left, i32(0)), own, i32(0))


def _whole_chunks(size: int) -> int:
    return -(-size // WIDEST) * WIDEST


def _first(codegen: KernelCodegen, op: BulkCopyOp | ReadOp, piece: PieceType) -> V:
    """The bytes from the start of a tensor to what this block has of a row."""
    b = codegen.b
    assert op.offset is not None
    first = codegen.size(op.offset.data[0], op.indices)
    if piece.share < piece.elements:
        first = b.add(first, b.mul(b.convert("zext", codegen.threads.rank, "i64"), i64(piece.share)))
    return b.mul(first, i64(piece.dtype.bytes))


def _brought(codegen: KernelCodegen, op: BulkCopyOp | ReadOp, piece: PieceType, first: V, size: V) -> V:
    """Where the slot of a row begins: with it or, where that may be anywhere, at a multiple of 16 bytes."""
    b = codegen.b
    if op.end is None:
        return first
    last = b.sub(i64(_whole_chunks(op.end.value.data * piece.dtype.bytes)), b.convert("zext", size, "i64"))
    return b.intrinsic("smin", b.binary("and", first, i64(-WIDEST)), last)


@EMITTERS.register(BulkCopyOp)
def emit_bulk_copy(codegen: KernelCodegen, op: BulkCopyOp) -> None:
    b, number = codegen.b, op.slot.value.data
    ring = codegen.kept if op.kept is not None else codegen.rings[0]
    assert ring is not None
    piece = ring.slots[number]
    assert isinstance(piece, PieceType)
    size = _bytes(codegen, piece)
    start = _brought(codegen, op, piece, _first(codegen, op, piece), size)
    source = b.add(codegen.pointers[op.pointer], start)
    if op.elements is not None:
        size = i32(op.elements.value.data * piece.dtype.bytes)
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    arguments = (ring.slot(b, number), source, size, ring.full(b))
    if size.name.isdigit():
        do(b, text, "r,l,r,r", *arguments)
    else:
        with b.when(b.icmp("sgt", size, i32(0))):
            do(b, text, "r,l,r,r", *arguments)


@EMITTERS.register(BulkCopyRowsOp)
def emit_bulk_copy_rows(codegen: KernelCodegen, op: BulkCopyRowsOp) -> None:
    """A copy for each row; weights are read once, so they are the first to leave the L2 cache."""
    b, ring, number = codegen.b, codegen.rings[0], op.slot.value.data
    piece = ring.slots[number]
    assert isinstance(piece, PieceType)
    size, rows, pitch = piece.dtype.bytes, op.rows.value.data, op.pitch.value.data
    first, apart, extent = (codegen.size(s.data[0], op.indices) for s in (op.offset, op.apart, op.extent))
    policy = converged(b, "i64", "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l")
    place, full = ring.slot(b, number), ring.full(b)
    for row in range(rows):
        there = b.intrinsic("smin", i64(row), b.sub(extent, i64(1)))
        source = b.add(codegen.pointers[op.pointer], b.mul(b.add(first, b.mul(there, apart)), i64(size)))
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        bytes_ = op.length.value.data * size
        target = b.add(place, i32(row * pitch * size))
        do(b, f"{text} [$0], [$1], {bytes_}, [$2], $3;", "r,l,r,l", target, source, full, policy)


@EMITTERS.register(ReadOp)
def emit_read(codegen: KernelCodegen, op: ReadOp) -> None:
    """A slot into registers, up to 16 bytes at a time. What lies beyond a tile's side is read and not used."""
    b, number = codegen.b, op.slot.value.data
    ring = codegen.kept if op.kept is not None else codegen.rings[0]
    assert ring is not None
    piece = ring.slots[number]
    assert isinstance(piece, PieceType)
    dtype, layout = piece.dtype, layout_of(op.out)
    strides = [int(stride) for stride in op.strides.data if isinstance(stride, int)]
    own = replace(layout, blocks=())
    index = i32(0)
    for axis, stride in enumerate(strides):
        index = b.add(index, b.mul(codegen.threads.place(own, axis), i32(stride)))
    start = b.add(ring.slot(b, number), b.mul(index, i32(dtype.bytes)))
    if op.end is not None:
        first = _first(codegen, op, piece)
        start = b.add(start, short(b, b.sub(first, _brought(codegen, op, piece, first, _bytes(codegen, piece)))))
    width = _width(layout, strides, dtype.bytes)
    values: list[V] = []
    for register in range(0, layout.count, width):
        ahead = sum(place * stride for place, stride in zip(layout.offsets[register], strides, strict=True))
        address = b.add(start, i32(ahead * dtype.bytes))
        if op.end is not None:
            values += load_unaligned(b, Chunk(address, i32(width), None, shifted=True), dtype, "shared")
            continue
        if PACKED in op.attributes:
            values += load_words(b, address, dtype.bytes, width, None, "shared")
            continue
        values += load_chunk(b, address, dtype, width, None, space="shared")
    if PACKED in op.attributes:
        codegen.tiles[op.out] = values
        return
    target = tile.tile_type(op.out).dtype
    codegen.tiles[op.out] = [codegen.widened(value, dtype, target) for value in values]


def _width(layout: Layout, strides: list[int], size: int) -> int:
    """How many neighbours are read at once: they lie side by side, aligned."""
    vector = layout.vector
    if vector.axis is None or strides[vector.axis] != 1:
        return 1
    width = min(layout.neighbours, WIDEST // size)
    modes = (*layout.registers[1:], *layout.lanes, *layout.warps)
    steps = [mode.step * strides[mode.axis] for mode in modes if mode.axis is not None and mode.size > 1]
    while any(step % width for step in steps):
        width //= 2
    return width


@EMITTERS.register(WaitKeptOp)
def emit_wait_kept(codegen: KernelCodegen, op: WaitKeptOp) -> None:
    assert codegen.kept is not None
    wait_for(codegen.b, codegen.kept.full(codegen.b), i32(0))
