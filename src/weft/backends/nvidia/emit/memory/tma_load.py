"""TMA loads as LLVM code: boxes of tensor maps, from global memory to the slot of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import converged, do, i32
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.ir.rings import LINE, SlotType, TmaLoadOp

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(TmaLoadOp)
def emit_tma_load(codegen: KernelCodegen, op: TmaLoadOp) -> None:
    """Boxes of one line's width, block after block, and piece after piece."""
    b, ring = codegen.b, codegen.rings[op.ring.value.data]
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
