"""Results of dots written line by line, where these begin anywhere: TMA takes multiples of 16 bytes.

A warp has laid 16 lines of 64 elements of 16 bits into shared memory. It writes one at a time, in words of memory: a
line that begins within a word is shifted by an element, and what lies at its ends beside the words goes by itself.

    elements     0 | 1 2 | 3 4 | … | 61 62 | 63          of a line that begins with the second half of a word
    words            w0    w1   …    w30
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import converged, do, i32, shuffle, wide
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.rings import LINE
from weft.backends.nvidia.ir.tma_store import STAGE_COLUMNS, STAGE_ROWS

ELEMENT, _WORD = 2, 4
_CHUNKS = 8
"""Pieces of 16 bytes of a line, which the number of the line mixes."""


@dataclass(frozen=True)
class Lines:
    """Where lines go: the address of the first (i64), the bytes from one to the next (i64), and what exists (i32).

    `columns` and `rows` count what there is from the first element on; they may be negative. Where all lines begin with
    a word they are `even`.
    """

    origin: V
    pitch: V
    columns: V
    rows: V
    even: bool


def write_lines(b: Function, lane: V, slot: V, lines: Lines) -> None:
    """Write what a warp has in a slot of shared memory, which all its lanes can see."""
    width = b.intrinsic("smin", lines.columns, i32(STAGE_COLUMNS))
    address = lines.origin
    for line in range(STAGE_ROWS):
        # LLVM would keep in registers what lines have in common, beside the sums of the next tile.
        lane = converged(b, "i32", "mov.b32 $0, $1;", "=r,r", lane)
        mixed = b.binary("xor", b.mul(lane, i32(_WORD)), i32(line % _CHUNKS * (LINE // _CHUNKS)))
        place = b.add(b.add(slot, mixed), i32(line * LINE))
        word = converged(b, "i32", "ld.shared.b32 $0, [$1];", "=r,r,~{memory}", place)
        limit = b.select(b.icmp("sgt", lines.rows, i32(line)), width, i32(0))
        element = b.mul(lane, i32(2))
        if not lines.even:
            half = b.convert("trunc", b.binary("lshr", address, i64(1)), "i32")
            odd = b.binary("and", half, i32(1))
            first = b.binary("and", b.icmp("slt", lane, odd), b.icmp("sgt", limit, i32(0)))
            _store(b, address, word, 16, first)
            word = b.intrinsic("fshr", shuffle(b, word, "down", 1, WARP), word, b.mul(odd, i32(8 * ELEMENT)))
            element = b.add(element, odd)
        target, following = b.add(address, wide(b, b.mul(element, i32(ELEMENT)))), b.add(element, i32(1))
        _store(b, target, word, 32, b.icmp("slt", following, limit))
        _store(b, target, word, 16, b.icmp("eq", following, limit))
        address = b.add(address, lines.pitch)


def _store(b: Function, address: V, word: V, bits: int, predicate: V) -> None:
    """Write a word, or its lower half."""
    value, constraint = (word, "r") if bits == 32 else (b.convert("trunc", word, "i16"), "h")
    do(b, f"@$2 st.global.b{bits} [$0], $1;", f"l,{constraint},b", address, value, predicate)
