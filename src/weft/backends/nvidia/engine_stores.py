"""Results of products written by the copy engine: a warp lays 16 rows of 64 columns into shared memory at a time.

The accumulators of a warp, narrowed to 16 bits and taken in pairs, are just what `stmatrix` scatters to lines. Two
places take turns, so that one is written while the engine still reads the other; no other warp has to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.builder import V
from weft.backends.nvidia.alignment import pointer_dtype
from weft.backends.nvidia.asynchronous import COORDINATES, LINE, MAP, STAGE_BYTES, STAGE_COLUMNS
from weft.backends.nvidia.block import SHARED_SYMBOL, do, elected, i32
from weft.backends.nvidia.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.global_memory import pair
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen


def store_by_engine(codegen: KernelCodegen, op: tile.StoreOp) -> None:
    """Write a tile in the tensor cores' layout, row by row of 64."""
    b, threads, dtype = codegen.b, codegen.threads, pointer_dtype(op)
    layout, values = layout_of(op.value), codegen.stored(op)
    columns = tile.tile_type(op.value).sizes[1]
    coordinates = op.attributes[COORDINATES]
    assert isinstance(coordinates, tile.Sizes)
    first, row, *others = (b.convert("trunc", codegen.size(c, op.indices), "i32") for c in coordinates.data)
    # The lanes of a quarter of a warp give the addresses of the lines of one 8x8 block.
    own = b.add(i32(integer(op, SHARED)), b.mul(threads.warp, i32(2 * STAGE_BYTES)))
    base = b.add(b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32"), own)
    line = b.binary("and", threads.lane, i32(15))
    chunk = b.binary("xor", b.binary("lshr", threads.lane, i32(4)), b.binary("and", threads.lane, i32(7)))
    swizzled = b.add(b.mul(line, i32(LINE)), b.mul(chunk, i32(LINE // 8)))
    top = b.add(row, b.sub(threads.place(layout, 0), b.binary("lshr", threads.lane, i32(2))))
    turn = 0
    for start in range(0, len(values), columns // 2):  # 64 rows of the warp group
        down = layout.offsets[start][0]
        for piece in range(columns // STAGE_COLUMNS):
            slot = b.add(base, i32(turn % 2 * STAGE_BYTES))
            turn += 1
            with b.when(elected(b)):
                do(b, "cp.async.bulk.wait_group.read 1;", "")
            _warp_sync(codegen)
            for quarter in range(STAGE_COLUMNS // 16):
                at = start + (piece * STAGE_COLUMNS + quarter * 16) // 2
                registers = [pair(b, values[at + k], values[at + k + 1], dtype.name) for k in (0, 2, 4, 6)]
                address = b.add(slot, b.binary("xor", swizzled, i32(quarter * 32)))
                text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
                do(b, text, "r,r,r,r,r", address, *registers)
            do(b, "fence.proxy.async.shared::cta;", "")
            _warp_sync(codegen)
            place = [b.add(first, i32(piece * STAGE_COLUMNS)), b.add(top, i32(down)), *others]
            with b.when(elected(b)):
                _send(codegen, codegen.maps[integer(op, MAP)], slot, place)
    if turn % 2:  # the next tile starts with the place that was used last
        with b.when(elected(b)):
            do(b, "cp.async.bulk.wait_group.read 0;", "")


def _send(codegen: KernelCodegen, map_: V, source: V, place: list[V]) -> None:
    names = ", ".join(f"${i + 2}" for i in range(len(place)))
    text = (
        f"cp.async.bulk.tensor.{len(place)}d.global.shared::cta.tile.bulk_group [$0, {{{names}}}], [$1]; "
        "cp.async.bulk.commit_group;"
    )
    do(codegen.b, text, "l,r" + ",r" * len(place), map_, source, *place)


def finish_stores(codegen: KernelCodegen) -> None:
    """Shared memory must outlive what the engine reads of it."""
    with codegen.b.when(elected(codegen.b)):
        do(codegen.b, "cp.async.bulk.wait_group.read 0;", "")


def _warp_sync(codegen: KernelCodegen) -> None:
    do(codegen.b, "bar.warp.sync -1;", "")
