"""Results of products written by the copy engine: a warp lays 16 rows of 64 columns into shared memory at a time.

The accumulators of a warp, narrowed to 16 bits and taken in pairs, are just what `stmatrix` scatters to lines. Two
places take turns, so that one is written while the engine still reads the other; no other warp has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import V, i64
from weft.backends.nvidia.alignment import pointer_dtype
from weft.backends.nvidia.asynchronous import (
    COORDINATES,
    LIMIT,
    LINE,
    MAP,
    STAGE_BYTES,
    STAGE_COLUMNS,
    STAGE_ROWS,
    NarrowOp,
    SendOp,
)
from weft.backends.nvidia.block import SHARED_SYMBOL, do, elected, i32
from weft.backends.nvidia.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.global_memory import address_of, pair
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen

PIECE_WORDS = STAGE_ROWS * STAGE_COLUMNS // 64
"""What a thread has of a piece: 16 rows of 64 columns of its warp."""
_HALF = 2
"""The bytes of an element."""


def store_by_engine(codegen: KernelCodegen, op: tile.StoreOp) -> None:
    """Write a tile in the tensor cores' layout, piece by piece."""
    words = _words(codegen, codegen.stored(op), pointer_dtype(op).name)
    for piece in range(len(words) // PIECE_WORDS):
        _send(codegen, op, words, piece)


def narrow(codegen: KernelCodegen, op: NarrowOp) -> None:
    codegen.tiles[op.out] = _words(codegen, codegen.tiles[op.value], op.dtype.data)


def send(codegen: KernelCodegen, op: SendOp) -> None:
    _send(codegen, op, codegen.tiles[op.words], op.piece.value.data)


def _words(codegen: KernelCodegen, values: Sequence[V], dtype: str) -> list[V]:
    return [pair(codegen.b, low, high, dtype) for low, high in zip(values[::2], values[1::2], strict=True)]


def _send(codegen: KernelCodegen, op: tile.StoreOp | SendOp, words: Sequence[V], piece: int) -> None:
    """Write a piece of 64 rows of a warp group and 64 columns, of which each warp has 16 rows."""
    b, threads = codegen.b, codegen.threads
    coordinates = op.attributes[COORDINATES]
    assert isinstance(coordinates, tile.Sizes)
    tile_ = op.words if isinstance(op, SendOp) else op.value
    layout, count = layout_of(tile_), len(words) // PIECE_WORDS
    first, row, *others = (b.convert("trunc", codegen.size(c, op.indices), "i32") for c in coordinates.data)
    # The lanes of a quarter of a warp give the addresses of the lines of one 8x8 block.
    own = b.add(i32(integer(op, SHARED) + piece % 2 * STAGE_BYTES), b.mul(threads.warp, i32(2 * STAGE_BYTES)))
    slot = b.add(b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32"), own)
    line = b.binary("and", threads.lane, i32(15))
    chunk = b.binary("xor", b.binary("lshr", threads.lane, i32(4)), b.binary("and", threads.lane, i32(7)))
    swizzled = b.add(b.mul(line, i32(LINE)), b.mul(chunk, i32(LINE // 8)))
    with b.when(elected(b)):  # the first piece may be given the place that was used last
        do(b, f"cp.async.bulk.wait_group.read {0 if piece == 0 and _may_meet(codegen, count) else 1};", "")
    _warp_sync(codegen)
    for at in range(0, PIECE_WORDS, 4):  # 16 columns
        address = b.add(slot, b.binary("xor", swizzled, i32(at * 8)))
        text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
        do(b, text, "r,r,r,r,r", address, *words[piece * PIECE_WORDS + at :][:4])
    do(b, "fence.proxy.async.shared::cta;", "")
    _warp_sync(codegen)
    across = tile.tile_type(tile_).sizes[1] * (2 if isinstance(op, SendOp) else 1) // STAGE_COLUMNS
    down = b.sub(threads.place(layout, 0), b.binary("lshr", threads.lane, i32(2)))
    top = b.add(row, b.add(down, i32(layout.offsets[piece * len(layout.offsets) // count][0])))
    place = [b.add(first, i32(piece % across * STAGE_COLUMNS)), top, *others]
    limit, one = op.attributes.get(LIMIT), elected(b)
    if not isinstance(limit, tile.Sizes):
        with b.when(one):
            _start(codegen, codegen.maps[integer(op, MAP)], slot, place)
            _commit(codegen)
        return
    end = b.convert("trunc", codegen.size(limit.data[0], op.indices), "i32")
    inside = b.icmp("sle", b.add(top, i32(STAGE_ROWS)), end)
    with b.when(one):
        with b.when(inside):
            _start(codegen, codegen.maps[integer(op, MAP)], slot, place)
        _commit(codegen)  # also of nothing: how many are under way says which place is free
    with b.when(b.binary("and", b.icmp("slt", top, end), b.binary("xor", inside, V("i1", "true")))):
        _write_until(codegen, op, words[piece * PIECE_WORDS :][:PIECE_WORDS], place, end)


def _may_meet(codegen: KernelCodegen, count: int) -> bool:
    """Whether the tile written before may have ended in this one's first place: one of an odd count of pieces."""
    ops = codegen.kernel.walk()
    sent = [each for each in ops if isinstance(each, tile.StoreOp | SendOp) and MAP in each.attributes]
    return count % 2 == 1 or len({integer(each, MAP) for each in sent}) > 1


def _start(codegen: KernelCodegen, map_: V, source: V, place: list[V]) -> None:
    names = ", ".join(f"${i + 2}" for i in range(len(place)))
    text = f"cp.async.bulk.tensor.{len(place)}d.global.shared::cta.tile.bulk_group [$0, {{{names}}}], [$1];"
    do(codegen.b, text, "l,r" + ",r" * len(place), map_, source, *place)


def _commit(codegen: KernelCodegen) -> None:
    do(codegen.b, "cp.async.bulk.commit_group;", "")


def _write_until(
    codegen: KernelCodegen, op: tile.StoreOp | SendOp, words: Sequence[V], place: Sequence[V], end: V
) -> None:
    """Write the rows of a piece before one, by the threads that have them: two rows of a pair of columns in eight."""
    b, lane, map_ = codegen.b, codegen.threads.lane, codegen.launch.maps[integer(op, MAP)]
    (columns, *_), (pitch, *_) = map_.sizes, map_.strides
    assert isinstance(columns, int) and isinstance(pitch, int)
    pointer = codegen.pointers[codegen.kernel.block.args[map_.argument]]
    first, top = place[:2]
    row = b.add(top, b.binary("lshr", lane, i32(2)))
    column = b.add(first, b.mul(b.binary("and", lane, i32(3)), i32(2)))
    for number, word in enumerate(words):
        down, across = b.add(row, i32(number % 2 * 8)), b.add(column, i32(number // 2 * 8))
        exists = b.binary("and", b.icmp("slt", down, end), b.icmp("slt", across, i32(columns)))
        at = b.add(b.mul(b.convert("sext", down, "i64"), i64(pitch)), b.convert("sext", across, "i64"))
        with b.when(exists):
            do(b, "st.global.b32 [$0], $1;", "l,r", address_of(b, pointer, _HALF, at), word)


def finish_stores(codegen: KernelCodegen) -> None:
    """Shared memory must outlive what the engine reads of it."""
    with codegen.b.when(elected(codegen.b)):
        do(codegen.b, "cp.async.bulk.wait_group.read 0;", "")


def _warp_sync(codegen: KernelCodegen) -> None:
    do(codegen.b, "bar.warp.sync -1;", "")
