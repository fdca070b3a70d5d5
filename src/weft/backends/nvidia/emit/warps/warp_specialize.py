"""Warp-specialized kernels as LLVM code: the rings of stages, their barriers, TMA, and who does what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from weft.backends.llvm.builder import Function, V
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, Threads, converged, do, elected, i32, meet
from weft.backends.nvidia.emit.dot.merged_wgmma import joined, merged_slot, merged_sums, split_sums
from weft.backends.nvidia.emit.dot.wgmma import descriptor, multiply, wait
from weft.backends.nvidia.emit.memory.global_memory import load_chunk, pair
from weft.backends.nvidia.emit.memory.tma_store import finish_stores, narrow, send
from weft.backends.nvidia.emit.warps.dynamic_tile_scheduler import DynamicTileScheduler
from weft.backends.nvidia.emit.warps.programmatic_launch import grid_dependency_wait
from weft.backends.nvidia.emit.warps.ring_buffers import Ring, expect, wait_for
from weft.backends.nvidia.ir.dialect import RESIDENT, integer, layout_of
from weft.backends.nvidia.ir.dynamic_tile_scheduler import NUMBERS
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.register_operands import register_operand
from weft.backends.nvidia.ir.row_streams import PieceType
from weft.backends.nvidia.ir.warp_specialization import (
    BARRIER_BYTES,
    LINE,
    MAP,
    AcquireOp,
    AffineApplyOp,
    BlockNumberOp,
    CommitOp,
    PingPongBarrierOp,
    ReleaseOp,
    RewindOp,
    RingToRegistersOp,
    SlotOp,
    SlotType,
    TmaLoadOp,
    TmaStoreOp,
    TruncatePackOp,
    WaitOp,
    WarpSpecializeOp,
    WgmmaOp,
    WgmmaWaitOp,
)
from weft.errors import LoweringError
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_GROUP_WARPS = 4
_REGISTERS = {(2, 1): (24, 240), (3, 1): (32, 160), (1, 2): (24, 232), (2, 2): (24, 104)}
"""What a thread of the producer and of a consumer may use, by the number of consumers, and of blocks beside each other:
together what all enter with. One consumer has enough."""
RING_OPS = (AcquireOp, CommitOp, WaitOp, ReleaseOp, RingToRegistersOp)
_FIRST_TURN, _GROUP_THREADS = 2, 128
"""The named barrier of the first consumer's turn; those of the others follow. Who waits and who passes meet there."""


def _rings(b: Function, op: WarpSpecializeOp) -> list[Ring]:
    """All slots lie before all barriers."""
    types = list(op.rings)
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    rings: list[Ring] = []
    start, barriers = 0, sum(each.bytes for each in types)
    for each in types:
        place, behind = b.add(base, i32(start)), b.add(base, i32(barriers))
        sharers = op.cluster.value.data
        rings.append(Ring(each.count, tuple(each.slots), place, i32(0), i32(0), barriers=behind, sharers=sharers))
        start += each.bytes
        barriers += BARRIER_BYTES * each.count
    return rings


def _numbers(b: Function, op: WarpSpecializeOp) -> Ring:
    """The ring of the numbers of programs, behind all others."""
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    place = b.add(base, i32(sum(each.bytes + BARRIER_BYTES * each.count for each in op.rings)))
    return Ring(NUMBERS, (), place, i32(0), i32(0), barriers=place)


def emit_warp_specialize(codegen: KernelCodegen, op: WarpSpecializeOp) -> None:
    """The whole of a kernel: set up the barriers, then each warp takes its role."""
    b = codegen.b
    consumers, cluster = op.consumers.value.data, op.cluster.value.data
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    warp = converged(b, "i32", "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", b.binary("lshr", thread, i32(5)))
    lane = b.binary("and", thread, i32(31))
    rings = _rings(b, op)
    counter = codegen.kernel.counter_pointer
    numbers = [] if counter is None else [_numbers(b, op)]
    with b.when(b.icmp("eq", thread, i32(0))):
        for ring in (*rings, *numbers):
            arrivals = _GROUP_WARPS * consumers * ring.sharers
            for number in range(ring.stages):
                at = replace(ring, stage=i32(number))
                do(b, "mbarrier.init.shared::cta.b64 [$0], 1;", "r", at.full(b))
                do(b, f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "r", at.empty(b))
        do(b, "fence.mbarrier_init.release.cluster;", "")
        for map_ in codegen.maps:  # they lie in memory too
            do(b, "prefetch.tensormap [$0];", "l", map_)
    meet(b, cluster)
    producing, consuming, after = b.label("producer"), b.label("consumer"), b.label("after")
    b.branch_if(b.icmp("ult", warp, i32(_GROUP_WARPS)), producing, consuming)
    fewer, more = _REGISTERS.get((consumers, integer(codegen.kernel, RESIDENT, 1)), (0, 0))
    b.start(producing)
    if fewer:
        do(b, f"setmaxnreg.dec.sync.aligned.u32 {fewer};", "")
    codegen.threads = Threads(b, _GROUP_WARPS, lane, warp)
    for number, producer in enumerate(op.producers):
        with b.when(b.icmp("eq", warp, i32(number))):
            if op.early is not None and number == 0:
                grid_dependency_wait(b)
            with b.when(elected(b)):
                codegen.rings = [replace(ring) for ring in rings]
                codegen.drawing = (
                    DynamicTileScheduler(replace(numbers[0]), codegen.pointers[counter])
                    if numbers and counter
                    else None
                )
                codegen.block(producer)
    b.branch(after)
    b.start(consuming)
    if more:
        do(b, f"setmaxnreg.inc.sync.aligned.u32 {more};", "")
    if op.early is not None:
        grid_dependency_wait(b)
    own = b.sub(warp, i32(_GROUP_WARPS))
    codegen.threads = Threads(b, _GROUP_WARPS * consumers, lane, own, barrier_number=1)
    codegen.threads.prepare(codegen.layouts)
    codegen.rings = rings
    codegen.drawing = DynamicTileScheduler(numbers[0], None) if numbers else None
    if any(
        isinstance(inner, PingPongBarrierOp) for inner in op.consumer.walk()
    ):  # the first one's turn is passed by the last
        with b.when(b.icmp("uge", own, i32(_GROUP_WARPS * (consumers - 1)))):
            do(b, f"bar.arrive {_FIRST_TURN}, {2 * _GROUP_THREADS};", "")
    codegen.block(op.consumer.block)
    if any(MAP in inner.attributes for inner in op.consumer.walk()):
        finish_stores(codegen)
    b.branch(after)
    b.start(after)
    if cluster > 1:  # nobody goes while others may still write to its memory
        meet(b, cluster)


def emit_warp_op(codegen: KernelCodegen, op: Operation) -> None:
    """An op of a role."""
    b = codegen.b
    match op:
        case BlockNumberOp():
            names = {"number": "ctaid.x", "count": "nctaid.x", "rank": "cluster.ctarank"}
            names |= {"cluster": "clusterid.x", "clusters": "nclusterid.x", "warp": "tid.x"}
            number = b.call(f"llvm.nvvm.read.ptx.sreg.{names[op.kind.data]}", "i32")
            number = b.binary("lshr", number, i32(5)) if op.kind.data == "warp" else number
            codegen.scalars[op.out] = b.convert("zext", number, "i64")
            return
        case AffineApplyOp():
            codegen.scalars[op.out] = codegen.size(op.value.data[0], op.indices)
            return
        case WarpSpecializeOp():
            emit_warp_specialize(codegen, op)
            return
        case WgmmaOp():
            _multiply(codegen, op)
            return
        case WgmmaWaitOp():
            _wgmma_wait(codegen, op)
            return
        case PingPongBarrierOp():
            _ping_pong(codegen, op)
            return
        case TruncatePackOp():
            narrow(codegen, op)
            return
        case TmaStoreOp():
            send(codegen, op)
            return
        case (
            AcquireOp()
            | TmaLoadOp()
            | CommitOp()
            | WaitOp()
            | SlotOp()
            | ReleaseOp()
            | RingToRegistersOp()
            | RewindOp()
        ):
            ring = codegen.rings[op.ring.value.data]
        case _:
            raise LoweringError(f"there is no code for {op.name} on a GPU")
    match op:
        case AcquireOp():
            wait_for(b, ring.empty(b), b.binary("xor", ring.phase, i32(1)))
            known = ring.arriving or i32(ring.stage_bytes)
            expect(b, ring.full(b), known if op.bytes is None else i32(op.bytes.value.data))
        case TmaLoadOp():
            _tma_load(codegen, op, ring)
        case CommitOp():
            ring.advance(b)
        case RewindOp():
            ring.rewind(b, op.stages.value.data)
        case WaitOp():
            wait_for(b, ring.full(b), ring.phase)
        case SlotOp():
            codegen.slots[op.out] = ring.slot(b, op.slot.value.data)
        case ReleaseOp():
            _release(codegen, ring, threads_read=isinstance(ring.slots[0], PieceType))
        case RingToRegistersOp():
            _ring_to_registers(codegen, op, ring)


def _release(codegen: KernelCodegen, ring: Ring, *, threads_read: bool) -> None:
    """Say that a warp is done with a stage, and go on to the next."""
    b = codegen.b
    if threads_read:
        # All lanes have read what they need, before TMA overwrites it.
        do(b, "fence.proxy.async.shared::cta;", "")
        do(b, "bar.warp.sync -1;", "")
    # Without a branch: dots may be under way.
    if ring.sharers == 1:
        text = "{ .reg .pred p; elect.sync _|p, -1; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
        do(b, text, "r", ring.empty(b))
    else:  # one lane for each block
        text = f"{{ .reg .pred p; .reg .b32 there; setp.lt.u32 p, $1, {ring.sharers}; "
        text += "mapa.shared::cluster.u32 there, $0, $1; "
        text += "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        do(b, text, "r,r", ring.empty(b), codegen.threads.lane)
    ring.advance(b)


def _ring_to_registers(codegen: KernelCodegen, op: RingToRegistersOp, ring: Ring) -> None:
    """Pairs of neighbours from swizzled lines: what a warp reads at once, four pairs of eight rows, is in 32 banks."""
    b, layout, part = codegen.b, layout_of(op.out), op.part
    size, columns = part.dtype.bytes, part.sizes[1]
    row, first = codegen.threads.place(layout, 0), codegen.threads.place(layout, 1)
    start = b.add(b.mul(row, i32(LINE)), b.mul(first, i32(size)))
    mixed = b.mul(b.binary("and", row, i32(7)), i32(16))
    values: list[V] = [V("", "")] * layout.count
    for number in range(op.parts):
        wait_for(b, ring.full(b), ring.phase)
        place = b.add(ring.slot(b, op.slot.value.data), start)
        for register in range(0, layout.count, 2):
            down, across = layout.offsets[register]
            if across // columns != number:
                continue
            block, within = divmod(across % columns * size, LINE)
            apart = b.add(b.binary("xor", mixed, i32(within)), i32((block * part.lines + down) * LINE))
            read = load_chunk(b, b.add(place, apart), part.dtype, 2, None, "shared")
            wanted = tile.tile_type(op.out).dtype
            values[register : register + 2] = [codegen.widened(value, part.dtype, wanted) for value in read]
        _release(codegen, ring, threads_read=True)
    codegen.tiles[op.out] = values


def _tma_load(codegen: KernelCodegen, op: TmaLoadOp, ring: Ring) -> None:
    """Boxes of one line's width, block after block, and piece after piece."""
    b = codegen.b
    slot = op.part or ring.slots[op.slot.value.data]
    assert isinstance(slot, SlotType)
    map_ = codegen.maps[op.map.value.data]
    place, full = ring.slot(b, op.slot.value.data), ring.full(b)
    coordinates = [b.convert("trunc", codegen.size(c, op.indices), "i32") for c in op.coordinates.data]
    pieces = 1 if op.pieces is None else op.pieces.value.data
    rank, lines = len(coordinates) // pieces, slot.lines // pieces
    names = ", ".join(f"${i + 3}" for i in range(rank))
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    places, kinds, policy = f"[$0], [$1, {{{names}}}], [$2]", "r,l,r" + ",r" * rank, list[V]()
    if op.sharers is not None:
        sharers = op.sharers.value.data
        lines //= sharers
        own = b.mul(b.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", "i32"), i32(lines))
        place, coordinates[1] = b.add(place, b.mul(own, i32(LINE))), b.add(coordinates[1], own)
        text, places, kinds = f"{text}.multicast::cluster", f"{places}, ${3 + rank}", f"{kinds},h"
        policy.append(V("i16", str((1 << sharers) - 1)))
    if op.once is not None:
        text, places, kinds = f"{text}.L2::cache_hint", f"{places}, ${3 + rank + len(policy)}", f"{kinds},l"
        policy.append(converged(b, "i64", "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l"))
    for piece in range(pieces):
        first, *others = coordinates[piece * rank : (piece + 1) * rank]
        for block in range(slot.blocks):
            at = [b.add(first, i32(block * LINE // slot.dtype.bytes)), *others]
            start = b.add(place, i32((block * slot.lines + piece * lines) * LINE))
            do(b, f"{text} {places};", kinds, start, map_, full, *at, *policy)


def _multiply(codegen: KernelCodegen, op: WgmmaOp) -> None:
    """Begin a dot, with those that are one with it when the last of them comes."""
    b, layout = codegen.b, layout_of(op.out)
    # What one warp group multiplies is bound by memory.
    products = joined(op) if layout.warp_count > _GROUP_WARPS else [op]
    if op is not products[-1]:
        return
    a_type, b_type = op.a.type, merged_slot(products)
    rows = tile.tile_type(op.out).sizes[0] * _GROUP_WARPS // layout.warp_count
    right = descriptor(b, codegen.slots[products[0].b], b_type, 0), b_type
    if isinstance(a_type, SlotType):
        group = b.binary("lshr", codegen.threads.warp, i32(2))
        # A warp group's rows: whole lines further on where rows are lines, whole blocks where they are not.
        apart = rows * LINE if a_type.axis == 1 else rows * a_type.dtype.bytes // LINE * a_type.lines * LINE
        start = b.add(codegen.slots[op.a], b.mul(group, i32(apart)))
        left = descriptor(b, start, a_type, 1), a_type
    else:
        left = codegen.tiles[op.a]
        codegen.in_flight.update((product.out, left) for product in products)
    totals = [codegen.tiles[product.accumulator] for product in products if product.accumulator is not None]
    values = multiply(b, left, right, merged_sums(totals, rows) if totals else None, rows)
    for product, part in zip(products, split_sums(values, len(products), rows), strict=True):
        codegen.tiles[product.out] = part


def packed_for_dot(codegen: KernelCodegen, op: tile.MapOp) -> list[V] | None:
    """The words of a tile that is narrowed for dots alone, which read it from registers.

    Two neighbouring 8x8 blocks of an accumulator, narrowed, are just what a dot reads as its left operand. They
    stay where they are packed: it is one register instead of two.
    """
    if narrowed_to(op) is None or not op.out.uses or (dtype := register_operand(op.out, WgmmaOp)) is None:
        return None
    values = codegen.tiles[op.args[0]]
    pairs = zip(values[::2], values[1::2], strict=True)
    return [pair(codegen.b, low, high, dtype.name, pure=False) for low, high in pairs]


def begins_dot(op: tile.MapOp) -> bool:
    """Whether a tile is what dots begin with, and nothing else."""
    uses = list(op.out.uses)
    return bool(uses) and all(isinstance(use.operation, WgmmaOp) and use.index == 2 for use in uses)


def _wgmma_wait(codegen: KernelCodegen, op: WgmmaWaitOp) -> None:
    held = [word for value in op.values for word in codegen.in_flight.get(value, ())]
    values = [each for value in op.values for each in codegen.tiles[value]]
    results = wait(codegen.b, values, op.pending.value.data, held)
    start = 0
    for value, out in zip(op.values, op.outs, strict=True):
        count = len(codegen.tiles[value])
        codegen.tiles[out] = results[start : start + count]
        start += count


def _ping_pong(codegen: KernelCodegen, op: PingPongBarrierOp) -> None:
    b, consumers = codegen.b, codegen.threads.warps // _GROUP_WARPS
    group = b.binary("lshr", codegen.threads.warp, i32(2))
    if op.kind.data == "await":
        do(b, f"bar.sync $0, {2 * _GROUP_THREADS};", "r", b.add(group, i32(_FIRST_TURN)))
        return
    last = b.icmp("eq", group, i32(consumers - 1))
    following = b.select(last, i32(_FIRST_TURN), b.add(group, i32(_FIRST_TURN + 1)))
    do(b, f"bar.arrive $0, {2 * _GROUP_THREADS};", "r", following)
