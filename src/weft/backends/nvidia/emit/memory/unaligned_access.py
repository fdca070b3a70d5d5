"""Rows that begin anywhere: 16 bytes at a time all the same, from the multiples of 16 bytes on either side.

A thread that wants 16 bytes at an address reads the two chunks that they lie in and shifts them together. One that
writes gets from the lane before it what that has of the chunk its own bytes begin in, and writes this chunk whole; what
has no neighbour (the ends of a row, the first and the last lane of a run) is written element by element. What is read
beyond a row lies in a chunk of which some is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import load_convert
from weft.backends.llvm.values import V, memory_type
from weft.backends.nvidia.emit.block import i32, short, shuffle
from weft.backends.nvidia.emit.memory.global_memory import load_chunk, load_words, packed, pieces, store_words
from weft.backends.nvidia.ir.alignment import WIDEST
from weft.backends.nvidia.ir.layouts import Layout
from weft.ir.types import DType

_WORDS = WIDEST // 4


@dataclass(frozen=True)
class Chunk:
    """Some neighbours of a thread, 16 bytes of them."""

    address: V
    left: V
    """How many elements of the row there are from the first of them on, which may be fewer (i32)."""
    predicate: V | None
    """Whether there is any."""
    shifted: bool
    """Whether it may begin anywhere."""

    def ahead(self, b: Function) -> V:
        """The bytes from the multiple of 16 before it (i32)."""
        if not self.shifted:
            return i32(0)
        low = short(b, self.address) if self.address.type == "i64" else self.address
        return b.binary("and", low, i32(WIDEST - 1))


def load_unaligned(b: Function, chunk: Chunk, dtype: DType, space: str = "global") -> list[V]:
    """The elements of a chunk as registers hold them; what is not there is arbitrary."""
    count, ahead = WIDEST // dtype.bytes, chunk.ahead(b)
    if not chunk.shifted:
        return load_chunk(b, chunk.address, dtype, count, chunk.predicate, space)
    start = b.sub(chunk.address, _like(b, ahead, chunk.address))
    there = b.binary("and", b.icmp("ne", ahead, i32(0)), _reaches(b, chunk.left, count, _elements(b, ahead, dtype)))
    there = there if chunk.predicate is None else b.binary("and", there, chunk.predicate)
    words = load_words(b, start, dtype.bytes, count, chunk.predicate, space)
    words += load_words(b, start, dtype.bytes, count, there, space, ahead=WIDEST)
    raw = [piece for word in _moved_down(b, words, ahead) for piece in pieces(b, word, 8 * dtype.bytes, 32)]
    return [load_convert(b, b.bitcast(value, memory_type(dtype)), dtype) for value in raw]


def store_unaligned(b: Function, chunk: Chunk, values: Sequence[V], dtype: DType, lane: V, layout: Layout) -> None:
    """Write neighbours; all lanes of a warp do so together."""
    count, run = len(values), _lanes_beside(layout, len(values))
    own = packed(b, values, dtype, 8 * dtype.bytes, 32)
    ahead = chunk.ahead(b)
    start = b.sub(chunk.address, _like(b, ahead, chunk.address))
    whole = own
    if chunk.shifted:
        before = [shuffle(b, word, "up", 1, run) if run > 1 else word for word in own]
        whole = _moved_up(b, [*before, *own], ahead)
    place = b.binary("and", lane, i32(run - 1))
    mine = b.sub(i32(count), _elements(b, ahead, dtype))  # of the chunk that the first element is in
    aligned = b.icmp("eq", ahead, i32(0))
    follows = b.binary("or", aligned, b.icmp("ne", place, i32(0)))
    complete = b.binary("and", follows, b.icmp("sge", chunk.left, mine))
    store_words(b, start, whole, 32, _both(b, complete, chunk.predicate))
    # The next lane writes what this one has of the next chunk, if there is one that writes it.
    goes_on = b.binary("and", b.icmp("ne", place, i32(run - 1)), b.icmp("sge", chunk.left, b.add(mine, i32(count))))
    first = b.select(complete, mine, i32(0))
    last = b.select(goes_on, mine, b.intrinsic("smin", chunk.left, i32(count)))
    length = b.sub(last, first)
    with b.when(_both(b, b.icmp("sgt", length, i32(0)), chunk.predicate)):
        raw = [piece for word in own for piece in pieces(b, word, 8 * dtype.bytes, 32)]
        for number, value in enumerate(raw):
            wanted = b.icmp("ult", b.sub(i32(number), first), length)
            there = number * dtype.bytes
            store_words(b, chunk.address, [_register(b, value)], 8 * dtype.bytes, wanted, there)


def _register(b: Function, value: V) -> V:
    """PTX has no registers of 8 bits."""
    return b.convert("zext", value, "i16") if value.type == "i8" else value


def _lanes_beside(layout: Layout, count: int) -> int:
    """How many lanes in a row hold neighbouring chunks: a lane of several has the one before its second itself."""
    first = layout.lanes[0] if layout.lanes else None
    beside = first is not None and first.axis == layout.vector.axis and first.step == count
    return first.size if beside and first is not None else 1


def _reaches(b: Function, left: V, count: int, ahead: V) -> V:
    """Whether something of the second chunk exists."""
    return b.icmp("sgt", left, b.sub(i32(count), ahead))


def _elements(b: Function, size: V, dtype: DType) -> V:
    shift = dtype.bytes.bit_length() - 1
    return b.binary("lshr", size, i32(shift)) if shift else size


def _moved_down(b: Function, words: Sequence[V], size: V) -> list[V]:
    """The bytes from `size` on, of eight words, in four."""
    found = list(words)
    for step in (2, 1):
        moves = b.icmp("ne", b.binary("and", size, i32(4 * step)), i32(0))
        found = [b.select(moves, found[i + step], found[i]) for i in range(len(found) - step)]
    bits = b.binary("shl", b.binary("and", size, i32(3)), i32(3))
    return [b.intrinsic("fshr", found[i + 1], found[i], bits) for i in range(_WORDS)]


def _moved_up(b: Function, words: Sequence[V], size: V) -> list[V]:
    """The last four of eight words, `size` bytes further up, with what comes from those before them."""
    found = list(words)
    for step in (2, 1):
        moves = b.icmp("ne", b.binary("and", size, i32(4 * step)), i32(0))
        found = [b.select(moves, found[i - step], found[i]) for i in range(step, len(found))]
    bits = b.binary("shl", b.binary("and", size, i32(3)), i32(3))
    return [b.intrinsic("fshl", found[i + 1], found[i], bits) for i in range(len(found) - 1)]


def _both(b: Function, one: V, other: V | None) -> V:
    return one if other is None else b.binary("and", one, other)


def _like(b: Function, value: V, other: V) -> V:
    return (
        V(other.type, value.name)
        if value.name.isdigit() or value.type == other.type
        else b.convert("zext", value, other.type)
    )
