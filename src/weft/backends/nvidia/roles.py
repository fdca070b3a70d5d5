"""Kernels of roles as LLVM code: the ring of stages, its barriers, the copy engine, and who does what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from weft.backends.llvm.builder import Function, V
from weft.backends.nvidia.asynchronous import (
    LINE,
    MAP,
    AcquireOp,
    BlockNumberOp,
    CommitOp,
    FillOp,
    IndexOp,
    ReleaseOp,
    RolesOp,
    SlotOp,
    SlotType,
    WaitOp,
    WgmmaOp,
)
from weft.backends.nvidia.block import SHARED_SYMBOL, Threads, barrier, converged, do, elected, i32
from weft.backends.nvidia.dialect import layout_of
from weft.backends.nvidia.engine_stores import finish_stores
from weft.backends.nvidia.streaming import PieceType
from weft.backends.nvidia.wgmma import descriptor, multiply
from weft.errors import LoweringError
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen

_GROUP_WARPS = 4
_REGISTERS = {1: (56, 256), 2: (40, 232), 3: (32, 160)}
"""What a thread of the producer and of a consumer may use, by the number of consumers: together what all enter with."""
RING_OPS = (AcquireOp, CommitOp, WaitOp, ReleaseOp)


@dataclass
class Ring:
    """Where the stages and their barriers lie in shared memory, and at which stage and phase a role is."""

    stages: int
    slots: tuple[SlotType, ...] | tuple[PieceType, ...]
    base: V
    stage: V
    phase: V
    turn: V | None = None
    """Of blocks in a cluster: how often they have exchanged something."""
    arriving: V | None = None
    """The bytes that come for a stage, where they are not known before."""

    @property
    def state(self) -> list[V]:
        """What goes on from turn to turn of a loop."""
        return [self.stage, self.phase, *([] if self.turn is None else [self.turn])]

    @state.setter
    def state(self, values: list[V]) -> None:
        self.stage, self.phase, *rest = values
        self.turn = rest[0] if rest else None

    @property
    def stage_bytes(self) -> int:
        return sum(slot.bytes for slot in self.slots)

    def slot(self, b: Function, number: int) -> V:
        """The address of a slot of this stage: slots of all stages lie one after the other."""
        start = self.stages * sum(slot.bytes for slot in self.slots[:number])
        return b.add(self.base, b.add(b.mul(self.stage, i32(self.slots[number].bytes)), i32(start)))

    def full(self, b: Function) -> V:
        return b.add(self.base, b.add(b.mul(self.stage, i32(8)), i32(self.stages * self.stage_bytes)))

    def empty(self, b: Function) -> V:
        return b.add(self.full(b), i32(8 * self.stages))

    def advance(self, b: Function) -> None:
        wrap = b.icmp("eq", self.stage, i32(self.stages - 1))
        self.stage = b.select(wrap, i32(0), b.add(self.stage, i32(1)))
        self.phase = b.binary("xor", self.phase, b.convert("zext", wrap, "i32"))


def emit_roles(codegen: KernelCodegen, op: RolesOp) -> None:
    """The whole of a kernel: set up the barriers, then each warp takes its role."""
    b = codegen.b
    stages, consumers = op.stages.value.data, op.consumers.value.data
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    warp = converged(b, "i32", "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", b.binary("lshr", thread, i32(5)))
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    ring = Ring(stages, tuple(op.slots), base, i32(0), i32(0))
    with b.when(b.icmp("eq", thread, i32(0))):
        for number in range(stages):
            at = Ring(stages, ring.slots, base, i32(number), i32(0))
            do(b, "mbarrier.init.shared::cta.b64 [$0], 1;", "r", at.full(b))
            do(b, f"mbarrier.init.shared::cta.b64 [$0], {_GROUP_WARPS * consumers};", "r", at.empty(b))
        do(b, "fence.mbarrier_init.release.cluster;", "")
    barrier(b)
    producing, consuming, after = b.label("producer"), b.label("consumer"), b.label("after")
    b.branch_if(b.icmp("ult", warp, i32(_GROUP_WARPS)), producing, consuming)
    fewer, more = _REGISTERS[consumers]
    b.start(producing)
    if consumers > 1:
        do(b, f"setmaxnreg.dec.sync.aligned.u32 {fewer};", "")
    with b.when(b.icmp("eq", warp, i32(0))), b.when(elected(b)):
        codegen.ring = Ring(stages, ring.slots, base, i32(0), i32(0))
        codegen.block(op.producer.block)
    b.branch(after)
    b.start(consuming)
    if consumers > 1:
        do(b, f"setmaxnreg.inc.sync.aligned.u32 {more};", "")
    own = b.sub(warp, i32(_GROUP_WARPS))
    codegen.threads = Threads(b, _GROUP_WARPS * consumers, b.binary("and", thread, i32(31)), own, barrier_number=1)
    codegen.threads.prepare(codegen.layouts)
    codegen.ring = ring
    codegen.block(op.consumer.block)
    if any(MAP in inner.attributes for inner in op.consumer.walk()):
        finish_stores(codegen)
    b.branch(after)
    b.start(after)


def emit_asynchronous(codegen: KernelCodegen, op: Operation) -> None:
    """An op of a role."""
    b = codegen.b
    match op:
        case BlockNumberOp():
            names = {"number": "ctaid", "count": "nctaid", "cluster": "clusterid", "clusters": "nclusterid"}
            name = names[op.kind.data]
            codegen.scalars[op.out] = b.convert("zext", b.call(f"llvm.nvvm.read.ptx.sreg.{name}.x", "i32"), "i64")
            return
        case IndexOp():
            codegen.scalars[op.out] = codegen.size(op.value.data[0], op.indices)
            return
        case RolesOp():
            emit_roles(codegen, op)
            return
        case _:
            pass
    ring = codegen.ring
    assert ring is not None
    match op:
        case AcquireOp():
            wait_for(b, ring.empty(b), b.binary("xor", ring.phase, i32(1)))
            expect(b, ring.full(b), ring.arriving or i32(ring.stage_bytes))
        case FillOp():
            _fill(codegen, op, ring)
        case CommitOp():
            ring.advance(b)
        case WaitOp():
            wait_for(b, ring.full(b), ring.phase)
        case SlotOp():
            codegen.slots[op.out] = ring.slot(b, op.slot.value.data)
        case ReleaseOp():
            if isinstance(ring.slots[0], PieceType):  # all lanes have read what they need
                do(b, "bar.warp.sync -1;", "")
            with b.when(elected(b)):
                do(b, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", ring.empty(b))
            ring.advance(b)
        case WgmmaOp():
            _multiply(codegen, op)
        case _:
            raise LoweringError(f"there is no code for {op.name} on a GPU")


def _fill(codegen: KernelCodegen, op: FillOp, ring: Ring) -> None:
    """Boxes of one line's width, block after block."""
    b = codegen.b
    slot = ring.slots[op.slot.value.data]
    assert isinstance(slot, SlotType)
    map_ = codegen.maps[op.map.value.data]
    place, full = ring.slot(b, op.slot.value.data), ring.full(b)
    first, *others = (b.convert("trunc", codegen.size(c, op.indices), "i32") for c in op.coordinates.data)
    rank = 1 + len(others)
    names = ", ".join(f"${i + 3}" for i in range(rank))
    for block in range(slot.blocks):
        at = [b.add(first, i32(block * LINE // slot.dtype.bytes)), *others]
        do(
            b,
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            f"[$0], [$1, {{{names}}}], [$2];",
            "r,l,r" + ",r" * rank,
            b.add(place, i32(block * slot.lines * LINE)),
            map_,
            full,
            *at,
        )


def _multiply(codegen: KernelCodegen, op: WgmmaOp) -> None:
    b = codegen.b
    a_type, b_type = op.a.type, op.b.type
    assert isinstance(a_type, SlotType) and isinstance(b_type, SlotType)
    layout = layout_of(op.out)
    rows = tile.tile_type(op.out).sizes[0] * _GROUP_WARPS // layout.warp_count
    group = b.binary("lshr", codegen.threads.warp, i32(2))
    # A warp group's rows: whole lines further on where rows are lines, whole blocks where they are not.
    apart = rows * LINE if a_type.axis == 1 else rows * a_type.dtype.bytes // LINE * a_type.lines * LINE
    start = b.add(codegen.slots[op.a], b.mul(group, i32(apart)))
    left = descriptor(b, start, a_type, 1), a_type
    right = descriptor(b, codegen.slots[op.b], b_type, 0), b_type
    if op.accumulator is None:
        total, adding = [V("float", "undef")] * layout.count, i32(0)
    else:
        total, adding = codegen.tiles[op.accumulator], i32(1)
    codegen.tiles[op.out] = multiply(b, left, right, total, rows, adding)


def expect(b: Function, address: V, size: V) -> None:
    """Arrive at a barrier that completes when so many bytes have come as well."""
    if size.name.isdigit():
        do(b, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {size.name};", "r", address)
    else:
        do(b, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r", address, size)


def wait_for(b: Function, address: V, parity: V) -> None:
    """Until the phase of that parity is complete; a fresh barrier lets parity 1 pass."""
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }"
    do(b, text, "r,r", address, parity)
