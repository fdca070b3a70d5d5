"""TMA stores: results of dots are written in pieces; a warp lays 16 rows of 64 columns into shared memory at a time.

From there TMA writes them, or the warp itself where lines begin anywhere (`unaligned_store`).

The accumulators of a warp, narrowed to 16 bits and taken in pairs, are just what `stmatrix` scatters to lines. Two
places take turns, so that one is written while TMA still reads the other; no other warp has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, do, elected, i32, wide
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import pair
from weft.backends.nvidia.emit.memory.unaligned_store import ELEMENT, Lines, write_lines
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.rings import LINE
from weft.backends.nvidia.ir.tma_store import (
    COORDINATES,
    LIMIT,
    LINES,
    MAP,
    POINTER,
    STAGE_BYTES,
    STAGE_COLUMNS,
    STAGE_ROWS,
    TmaStoreOp,
    TruncatePackOp,
)
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

PIECE_WORDS = STAGE_ROWS * STAGE_COLUMNS // 64
"""What a thread has of a piece: 16 rows of 64 columns of its warp."""


def store_in_pieces(codegen: KernelCodegen, op: tile.StoreOp) -> None:
    """Write a tile in the tensor cores' layout, piece by piece."""
    words = _words(codegen, codegen.tiles[codegen.stored(op)], pointer_dtype(op).name)
    for piece in range(len(words) // PIECE_WORDS):
        _send(codegen, op, words, piece)


@EMITTERS.register(TruncatePackOp)
def emit_truncate_pack(codegen: KernelCodegen, op: TruncatePackOp) -> None:
    codegen.tiles[op.out] = _words(codegen, codegen.tiles[op.value], op.dtype.data)


@EMITTERS.register(TmaStoreOp)
def emit_tma_store(codegen: KernelCodegen, op: TmaStoreOp) -> None:
    _send(codegen, op, codegen.tiles[op.words], op.piece.value.data)


def _words(codegen: KernelCodegen, values: Sequence[V], dtype: str) -> list[V]:
    return [pair(codegen.b, low, high, dtype) for low, high in zip(values[::2], values[1::2], strict=True)]


def _send(codegen: KernelCodegen, op: tile.StoreOp | TmaStoreOp, words: Sequence[V], piece: int) -> None:
    """Write a piece of 64 rows of a warp group and 64 columns, of which each warp has 16 rows."""
    b, threads = codegen.b, codegen.threads
    coordinates = op.attributes[COORDINATES]
    assert isinstance(coordinates, tile.Sizes)
    tile_ = op.words if isinstance(op, TmaStoreOp) else op.value
    layout, count = layout_of(tile_), len(words) // PIECE_WORDS
    first, row, *others = (b.convert("trunc", codegen.size(c, op.indices), "i32") for c in coordinates.data)
    # The lanes of a quarter of a warp give the addresses of the lines of one 8x8 block.
    own = b.add(i32(integer(op, SHARED) + piece % 2 * STAGE_BYTES), b.mul(threads.warp, i32(2 * STAGE_BYTES)))
    slot = b.add(b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32"), own)
    line = b.binary("and", threads.lane, i32(15))
    chunk = b.binary("xor", b.binary("lshr", threads.lane, i32(4)), b.binary("and", threads.lane, i32(7)))
    swizzled = b.add(b.mul(line, i32(LINE)), b.mul(chunk, i32(LINE // 8)))
    _free(codegen, op, piece, count)
    _warp_sync(codegen)
    for at in range(0, PIECE_WORDS, 4):  # 16 columns
        address = b.add(slot, b.binary("xor", swizzled, i32(at * 8)))
        text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
        do(b, text, "r,r,r,r,r", address, *words[piece * PIECE_WORDS + at :][:4])
    across = tile.tile_type(tile_).sizes[1] * (2 if isinstance(op, TmaStoreOp) else 1) // STAGE_COLUMNS
    down = b.sub(threads.place(layout, 0), b.binary("lshr", threads.lane, i32(2)))
    top = b.add(row, b.add(down, i32(layout.offsets[piece * len(layout.offsets) // count][0])))
    place = [b.add(first, i32(piece % across * STAGE_COLUMNS)), top, *others]
    if LINES in op.attributes:
        _warp_sync(codegen)
        write_lines(b, threads.lane, slot, _lines(codegen, op, place))
        return
    do(b, "fence.proxy.async.shared::cta;", "")
    _warp_sync(codegen)
    if LIMIT in op.attributes:
        _send_until(codegen, op, slot, place)
        return
    with b.when(elected(b)):
        _start(codegen, codegen.maps[integer(op, MAP)], slot, place)
        _commit(codegen)


def _free(codegen: KernelCodegen, op: tile.StoreOp | TmaStoreOp, piece: int, count: int) -> None:
    """Wait until TMA has read what a place was used for before: the first piece may be given the last one."""
    sent = _sent_by_tma(codegen)
    if not sent:
        return
    under_way = 0 if LINES in op.attributes or (piece == 0 and _may_meet(sent, count)) else 1
    with codegen.b.when(elected(codegen.b)):
        do(codegen.b, f"cp.async.bulk.wait_group.read {under_way};", "")


def _lines(codegen: KernelCodegen, op: tile.StoreOp | TmaStoreOp, place: Sequence[V]) -> Lines:
    b, sizes = codegen.b, op.attributes[LINES]
    assert isinstance(sizes, tile.Sizes)
    columns, rows, pitch, rest = (codegen.size(size, op.indices) for size in sizes.data[:4])
    first, top = (wide(b, each) for each in place)
    start = b.add(b.add(b.mul(top, pitch), first), rest)
    pointer = codegen.pointers[codegen.kernel.block.args[integer(op, POINTER)]]
    origin = b.add(pointer, b.mul(start, i64(ELEMENT)))
    exist = (b.convert("trunc", b.sub(size, each), "i32") for size, each in ((columns, first), (rows, top)))
    return Lines(origin, b.mul(pitch, i64(ELEMENT)), *exist, even=sizes.data[4] == 2)


def _sent_by_tma(codegen: KernelCodegen) -> set[int]:
    """The tensor maps of all stores that TMA makes."""
    ops = codegen.kernel.walk()
    return {
        integer(each, MAP) for each in ops if isinstance(each, tile.StoreOp | TmaStoreOp) and MAP in each.attributes
    }


def _may_meet(sent: set[int], count: int) -> bool:
    """Whether the tile written before may have ended in this one's first place: one of an odd count of pieces."""
    return count % 2 == 1 or len(sent) > 1


def _start(codegen: KernelCodegen, map_: V, source: V, place: list[V]) -> None:
    names = ", ".join(f"${i + 2}" for i in range(len(place)))
    text = f"cp.async.bulk.tensor.{len(place)}d.global.shared::cta.tile.bulk_group [$0, {{{names}}}], [$1];"
    do(codegen.b, text, "l,r" + ",r" * len(place), map_, source, *place)


def _commit(codegen: KernelCodegen) -> None:
    do(codegen.b, "cp.async.bulk.commit_group;", "")


def _send_until(codegen: KernelCodegen, op: tile.StoreOp | TmaStoreOp, slot: V, place: list[V]) -> None:
    """Write the rows of a piece that come before one: by TMA if all do, else by the warp."""
    b, limit, map_ = codegen.b, op.attributes[LIMIT], codegen.launch.maps[integer(op, MAP)]
    (columns, *_), (pitch, *_) = map_.sizes, map_.strides
    assert isinstance(limit, tile.Sizes) and isinstance(columns, int) and isinstance(pitch, int)
    first, top = place
    rows = b.sub(b.convert("trunc", codegen.size(limit.data[0], op.indices), "i32"), top)
    all_rows = b.icmp("sge", rows, i32(STAGE_ROWS))
    with b.when(elected(b)):
        with b.when(all_rows):
            _start(codegen, codegen.maps[integer(op, MAP)], slot, place)
        _commit(codegen)  # also of nothing: how many are under way says which place is free
    some = b.icmp("sgt", rows, i32(0))
    with b.when(b.binary("and", some, b.binary("xor", all_rows, V("i1", "true")))):
        start = b.add(b.mul(wide(b, top), i64(pitch)), wide(b, first))
        origin = b.add(codegen.pointers[codegen.kernel.block.args[map_.argument]], b.mul(start, i64(ELEMENT)))
        lines = Lines(origin, i64(pitch * ELEMENT), b.sub(i32(columns), first), rows, even=True)
        write_lines(b, codegen.threads.lane, slot, lines)


def finish_stores(codegen: KernelCodegen) -> None:
    """Shared memory must outlive what TMA reads of it."""
    with codegen.b.when(elected(codegen.b)):
        do(codegen.b, "cp.async.bulk.wait_group.read 0;", "")


def _warp_sync(codegen: KernelCodegen) -> None:
    do(codegen.b, "bar.warp.sync -1;", "")
