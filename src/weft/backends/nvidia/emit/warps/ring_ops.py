"""Ops on rings of stages as LLVM code: wait for a stage that is empty or full, go on to the next, read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IntegerAttr

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import do, i32
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import load_chunk
from weft.backends.nvidia.emit.warps.ring_buffers import Ring, expect, wait_for
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.rings import (
    LINE,
    AcquireOp,
    CommitOp,
    ReleaseOp,
    RewindOp,
    RingToRegistersOp,
    SlotOp,
    WaitOp,
)
from weft.backends.nvidia.ir.row_streams import PieceType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


RING_OPS = (AcquireOp, CommitOp, WaitOp, ReleaseOp, RingToRegistersOp)


def _ring(codegen: KernelCodegen, number: IntegerAttr) -> Ring:
    """A ring as the role sees it whose code is being written."""
    return codegen.rings[number.value.data]


@EMITTERS.register(AcquireOp)
def emit_acquire(codegen: KernelCodegen, op: AcquireOp) -> None:
    b, ring = codegen.b, _ring(codegen, op.ring)
    wait_for(b, ring.empty(b), b.binary("xor", ring.phase, i32(1)))
    known = ring.arriving or i32(ring.stage_bytes)
    expect(b, ring.full(b), known if op.bytes is None else i32(op.bytes.value.data))


@EMITTERS.register(CommitOp)
def emit_commit(codegen: KernelCodegen, op: CommitOp) -> None:
    _ring(codegen, op.ring).advance(codegen.b)


@EMITTERS.register(RewindOp)
def emit_rewind(codegen: KernelCodegen, op: RewindOp) -> None:
    _ring(codegen, op.ring).rewind(codegen.b, op.stages.value.data)


@EMITTERS.register(WaitOp)
def emit_wait(codegen: KernelCodegen, op: WaitOp) -> None:
    ring = _ring(codegen, op.ring)
    wait_for(codegen.b, ring.full(codegen.b), ring.phase)


@EMITTERS.register(SlotOp)
def emit_slot(codegen: KernelCodegen, op: SlotOp) -> None:
    codegen.slots[op.out] = _ring(codegen, op.ring).slot(codegen.b, op.slot.value.data)


@EMITTERS.register(ReleaseOp)
def emit_release(codegen: KernelCodegen, op: ReleaseOp) -> None:
    ring = _ring(codegen, op.ring)
    _release(codegen, ring, threads_read=isinstance(ring.slots[0], PieceType))


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


@EMITTERS.register(RingToRegistersOp)
def emit_ring_to_registers(codegen: KernelCodegen, op: RingToRegistersOp) -> None:
    """Pairs of neighbours from swizzled lines: what a warp reads at once, four pairs of eight rows, is in 32 banks."""
    b, ring, layout, part = codegen.b, _ring(codegen, op.ring), layout_of(op.out), op.part
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
