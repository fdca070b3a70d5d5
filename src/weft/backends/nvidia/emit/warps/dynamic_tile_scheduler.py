"""The dynamic tile scheduler: persistent blocks draw tiles; whichever block is free takes the next one.

    first program: the block's own number        producer: asks for the next one (an addition in memory), brings what
    tile.for … {nvidia.dynamic}                    this one needs, and puts the number into a ring of two
                                                 consumers: compute this one, and take the next one's number there

A kernel before this one sets the counter to 0: scratch memory holds what another one left there.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import converged, do, i32
from weft.backends.nvidia.emit.warps.ring_buffers import Ring, wait_for
from weft.backends.nvidia.ir.dynamic_tile_scheduler import NUMBERS


@dataclass
class DynamicTileScheduler:
    """A role's side of it: where the counter is, for the producer alone, and the ring of numbers."""

    ring: Ring
    counter: V | None

    def ask(self, b: Function, programs: V, blocks: V) -> V | None:
        """The next program's number, which takes a while to come; consumers have nothing to ask."""
        if self.counter is None:
            return None
        last = b.convert("trunc", b.sub(programs, V("i64", "1")), "i32")
        drawn = converged(b, "i32", "atom.global.inc.u32 $0, [$1], $2;", "=r,l,r", self.counter, last)
        return b.add(b.convert("zext", drawn, "i64"), blocks)

    def following(self, b: Function, asked: V | None) -> V:
        """The number of the next program, handed on by the producer."""
        ring = self.ring
        full, empty = ring.full(b), ring.empty(b)
        place = b.add(full, i32(16 * NUMBERS))
        if asked is not None:
            wait_for(b, empty, b.binary("xor", ring.phase, i32(1)))
            do(b, "st.shared.b64 [$0], $1;", "r,l", place, asked)
            do(b, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", full)
            ring.advance(b)
            return asked
        wait_for(b, full, ring.phase)
        number = converged(b, "i64", "ld.shared.b64 $0, [$1];", "=l,r", place)
        do(b, "bar.warp.sync -1;", "")
        text = "{ .reg .pred p; elect.sync _|p, -1; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
        do(b, text, "r", empty)
        ring.advance(b)
        return number
