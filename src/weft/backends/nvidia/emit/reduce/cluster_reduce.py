"""Reductions over the blocks of a cluster: every warp sends what it has to all blocks, and each waits for its own.

Two places take turns. A warp sends the next result but one after it has had all of the last, which all others sent
when they had read what lay there before: so nobody has to say that a place is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import Threads, converged, do, i32, shared_pointer, shuffle_xor
from weft.backends.nvidia.emit.warps.ring_buffers import Ring, expect, wait_for
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.shared_bytes import sent_bytes

Parts: TypeAlias = tuple[V, ...]
"""What is combined: a value, or several that go together."""
Combine: TypeAlias = Callable[[Parts, Parts], Parts]


@dataclass(frozen=True)
class Crossing:
    """Where blocks receive: two barriers, and behind them two places of `bytes` each."""

    ring: Ring
    base: V
    """The address of shared memory."""
    start: int
    bytes: int
    blocks: int
    warps: int

    def combined(self, b: Function, threads: Threads, parts: Parts, combine: Combine, sizes: tuple[int, ...]) -> Parts:
        """Of a value that each warp has, what all warps of the cluster have together."""
        turn = self.ring.turn
        assert turn is not None
        which = b.binary("and", turn, i32(1))
        phase = b.binary("and", b.binary("lshr", turn, i32(1)), i32(1))
        barrier = b.add(self.base, b.add(i32(self.start), b.mul(which, i32(8))))
        place = b.add(i32(self.start + 16), b.mul(which, i32(self.bytes)))  # from the start of shared memory
        sizes = tuple(sent_bytes(size) for size in sizes)
        count = self.blocks * self.warps
        number = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
        with b.when(b.icmp("eq", number, i32(0))):
            expect(b, barrier, i32(count * sum(sizes)))
        with b.when(b.icmp("ult", threads.lane, i32(self.blocks))):
            there = _of_block(b, barrier, threads.lane)
            mine = b.add(b.mul(threads.rank, i32(self.warps)), threads.warp)
            for part, size, offset in zip(parts, sizes, _offsets(sizes, count), strict=True):
                own = b.add(b.add(self.base, place), b.add(i32(offset), b.mul(mine, i32(size))))
                _send(b, part, size, _of_block(b, own, threads.lane), there)
        wait_for(b, barrier, phase)
        self.ring.turn = b.add(turn, i32(1))

        def read(index: V) -> Parts:
            found: list[V] = []
            for part, size, offset in zip(parts, sizes, _offsets(sizes, count), strict=True):
                at = b.add(b.add(place, i32(offset)), b.mul(index, i32(size)))
                word = part.type if part.type in ("float", "double") else f"i{8 * size}"
                pointer = shared_pointer(b, 0, at, 1)
                value = b.emit(word, f"load {word}, {pointer}, align {size}")
                found.append(b.convert("trunc", value, part.type) if part.type.startswith("i") else value)
            return tuple(found)

        lane = b.binary("and", threads.lane, i32(count - 1)) if count < WARP else threads.lane
        total = read(lane)
        for more in range(WARP, count, WARP):
            total = combine(total, read(b.add(lane, i32(more))))
        mask = 1
        while mask < min(count, WARP):
            total = combine(total, tuple(shuffle_xor(b, part, mask) for part in total))
            mask *= 2
        return total


def _offsets(sizes: tuple[int, ...], count: int) -> list[int]:
    """Where the values of each part begin; those of eight bytes come first."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    offsets, start = [0] * len(sizes), 0
    for i in order:
        offsets[i] = start
        start += sizes[i] * count
    return offsets


def _of_block(b: Function, address: V, rank: V) -> V:
    """The same place in the shared memory of another block."""
    return converged(b, "i32", "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", address, rank)


def _send(b: Function, value: V, size: int, address: V, barrier: V) -> None:
    word = f"i{8 * size}"
    raw = b.convert("zext", value, word) if value.type.startswith("i") else b.bitcast(value, word)
    text = f"st.async.shared::cluster.mbarrier::complete_tx::bytes.b{8 * size} [$0], $1, [$2];"
    do(b, text, f"r,{'r' if size == 4 else 'l'},r", address, raw, barrier)
