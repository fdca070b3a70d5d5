"""Warp-specialized kernels as LLVM code: the rings of stages, their barriers, TMA, and who does what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, Threads, converged, do, elected, i32, meet
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.tma_store import finish_stores
from weft.backends.nvidia.emit.warps.dynamic_tile_scheduler import DynamicTileScheduler
from weft.backends.nvidia.emit.warps.programmatic_launch import grid_dependency_wait
from weft.backends.nvidia.emit.warps.ring_buffers import Ring
from weft.backends.nvidia.ir.dialect import MAX_REGISTERS, RESIDENT, integer
from weft.backends.nvidia.ir.dynamic_tile_scheduler import NUMBERS
from weft.backends.nvidia.ir.rings import BARRIER_BYTES
from weft.backends.nvidia.ir.tma_store import MAP
from weft.backends.nvidia.ir.warp_specialization import PingPongBarrierOp, WarpSpecializeOp
from weft.diagnostics import warn

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_GROUP_WARPS = 4
_REGISTERS = {(2, 1): (24, 240), (3, 1): (32, 160), (1, 2): (24, 232), (2, 2): (24, 104)}
"""What a thread of the producer and of a consumer may use, by the number of consumers, and of blocks beside each other:
together what all enter with. One consumer has enough."""
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


@EMITTERS.register(WarpSpecializeOp)
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
    if limit := integer(codegen.kernel, MAX_REGISTERS):
        warn(
            "options",
            f"maxnreg={limit} of {codegen.kernel.sym_name.data} has no effect",
            "Weft shares the registers of a block out between warps that copy and warps that multiply",
            "leave it out",
            cause="maxnreg of warp roles",
        )
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


@EMITTERS.register(PingPongBarrierOp)
def emit_ping_pong_barrier(codegen: KernelCodegen, op: PingPongBarrierOp) -> None:
    b, consumers = codegen.b, codegen.threads.warps // _GROUP_WARPS
    group = b.binary("lshr", codegen.threads.warp, i32(2))
    if op.kind.data == "await":
        do(b, f"bar.sync $0, {2 * _GROUP_THREADS};", "r", b.add(group, i32(_FIRST_TURN)))
        return
    last = b.icmp("eq", group, i32(consumers - 1))
    following = b.select(last, i32(_FIRST_TURN), b.add(group, i32(_FIRST_TURN + 1)))
    do(b, f"bar.arrive $0, {2 * _GROUP_THREADS};", "r", following)
