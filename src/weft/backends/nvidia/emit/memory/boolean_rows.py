"""Booleans in memory that are wanted as tensor cores hold results: 16 bytes at a time, exchanged as bits.

    128 booleans of a row          four lanes read 16 bytes each, twice, and make 32 bits of them, which all get;
    lane 1 wants 2, 3, 10, 11, …   it tests those of its own columns

Read as they are wanted, two at a time, they would take a load for every eight columns, each of eight lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import converged, i32, wide
from weft.backends.nvidia.emit.memory.global_memory import load_words
from weft.backends.nvidia.ir.accesses import BLOCK, CHUNK, NEIGHBOURS, QUAD
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_WITHIN_QUAD = (WARP - QUAD) << 8 | WARP - 1
"""How an exchange is told that lanes are counted in fours."""
_GATHERED = (1 << 24) + (1 << 17) + (1 << 10) + (1 << 3)
"""Times a word of four booleans, this has them side by side from bit 24 on."""


def load_rows(codegen: KernelCodegen, op: tile.LoadOp, layout: Layout) -> list[V]:
    """The registers of a load of booleans."""
    b = codegen.b
    within = b.binary("and", codegen.threads.lane, i32(QUAD - 1))
    stride = codegen.size(op.strides.data[0], op.indices)
    row = wide(b, codegen.threads.place(layout, 0))
    first = b.add(codegen.size(op.offset.data[0], op.indices), b.mul(row, stride))
    origin = b.add(b.add(codegen.pointers[op.pointer], first), wide(b, b.mul(within, i32(CHUNK))))
    rows: dict[int, list[V]] = {}
    for down, _ in layout.offsets:
        if down not in rows:
            place = b.add(origin, b.mul(i64(down), stride))
            read = _bits(b, place, layout.shape[1] // BLOCK)
            own = b.mul(within, i32(NEIGHBOURS))
            rows[down] = [b.binary("lshr", word, own) for word in _of_all_lanes(b, read)]
    return [_tested(b, rows[down], across) for down, across in layout.offsets]


def _bits(b: Function, place: V, blocks: int) -> V:
    """What a lane reads of a row, 16 columns of each block, as bits."""
    total = i32(0)
    for block in range(blocks):
        words = load_words(b, place, 1, CHUNK, None, ahead=block * BLOCK)
        for number, word in enumerate(words):
            four = b.binary("lshr", b.mul(word, i32(_GATHERED)), i32(24))
            total = b.binary("or", total, b.binary("shl", four, i32(CHUNK * block + 4 * number)))
    return total


def _of_all_lanes(b: Function, bits: V) -> list[V]:
    """The bits of the four lanes of a row."""
    texts = [f"shfl.sync.idx.b32 $0, $1, {number}, {_WITHIN_QUAD}, -1;" for number in range(QUAD)]
    return [converged(b, "i32", text, "=r,r", bits) for text in texts]


def _tested(b: Function, words: list[V], across: int) -> V:
    """A column's boolean: the lane's own columns are first in each eight bits."""
    block, column = divmod(across, BLOCK)
    source, within = divmod(column, CHUNK)
    bit = 1 << (CHUNK * block + within)
    bit = bit - (1 << 32) if bit >= 1 << 31 else bit
    return b.icmp("ne", b.binary("and", words[source], i32(bit)), i32(0))
