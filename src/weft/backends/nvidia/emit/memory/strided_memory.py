"""Strided memory: what a thread loads and stores, in chunks of neighbours that lie side by side and exist together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import i32, wide
from weft.backends.nvidia.emit.dot.mma import reads_alone
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.boolean_rows import load_rows
from weft.backends.nvidia.emit.memory.global_memory import (
    ONCE,
    joined,
    load_chunk,
    load_raw,
    load_words,
    pair,
    store_chunk,
)
from weft.backends.nvidia.emit.memory.tma_store import store_in_pieces
from weft.backends.nvidia.emit.memory.unaligned_access import Chunk, load_unaligned, store_unaligned
from weft.backends.nvidia.ir.accesses import is_of_rows, ragged_width
from weft.backends.nvidia.ir.alignment import WIDEST, access_of, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import layout_of, layouts_of
from weft.backends.nvidia.ir.layouts import Layout, picked
from weft.backends.nvidia.ir.mma import AGAIN, AHEAD, HELD, PACKED, RAW, SPREAD, PackOp
from weft.backends.nvidia.ir.scratch import space_of
from weft.backends.nvidia.ir.tma_store import is_staged
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.LoadOp)
def emit_load(codegen: KernelCodegen, op: tile.LoadOp) -> None:
    layout = layout_of(op.out)
    if PACKED in op.attributes:
        codegen.tiles[op.out] = _packed(codegen, op, layout) if HELD not in op.attributes else []
        return
    if RAW in op.attributes:
        codegen.tiles[op.out] = [
            load_raw(codegen.b, address, pointer_dtype(op), predicate)
            for _, address, predicate in _chunks(codegen, op, layout, width=1)
        ]
        return
    if is_of_rows(op, layout):
        codegen.tiles[op.out] = load_rows(codegen, op, layout)
        return
    values: list[V] = [V("", "")] * layout.count
    ragged = ragged_width(op, layout)
    for registers, address, predicate in _chunks(codegen, op, layout, width=ragged):
        if ragged:
            chunk = _ragged_chunk(codegen, op, layout, registers[0], address, predicate)
            loaded = load_unaligned(codegen.b, chunk, pointer_dtype(op))
        else:
            space = space_of(op.pointer)
            loaded = load_chunk(codegen.b, address, pointer_dtype(op), len(registers), predicate, space)
        for register, value in zip(registers, loaded, strict=True):
            values[register] = codegen.widened(value, pointer_dtype(op), tile.tile_type(op.out).dtype)
    codegen.tiles[op.out] = values


def _packed(codegen: KernelCodegen, op: tile.LoadOp, layout: Layout) -> list[V]:
    """The registers of a load that hold 4 bytes of neighbours each."""
    space, size = ONCE if AHEAD in op.attributes and AGAIN not in op.attributes else "global", pointer_dtype(op).bytes
    reads = reads_alone(codegen.b, codegen.threads.lane) if SPREAD in op.attributes else None
    words = [
        word
        for registers, address, predicate in _chunks(codegen, op, layout)
        for word in load_words(codegen.b, address, size, len(registers), codegen.both(predicate, reads), space)
    ]
    if len(words) * 4 == layout.count * size:
        return words
    return [joined(codegen.b, low, high) for low, high in zip(words[::2], words[1::2], strict=True)]


@EMITTERS.register(PackOp)
def emit_pack(codegen: KernelCodegen, op: PackOp) -> None:
    values, exists = codegen.tiles[op.value], codegen.existing(op.value, layout_of(op.out))
    zero, dtype = V("float", "0.0"), op.dtype.data
    held = [v if e is None else codegen.b.select(e, v, zero) for v, e in zip(values, exists, strict=True)]
    codegen.tiles[op.out] = [pair(codegen.b, low, high, dtype) for low, high in zip(held[::2], held[1::2], strict=True)]


@EMITTERS.register(tile.StoreOp)
def emit_store(codegen: KernelCodegen, op: tile.StoreOp) -> None:
    if is_staged(op):
        store_in_pieces(codegen, op)
        return
    (layout,) = layouts_of(op)
    source, values = layout_of(op.value), codegen.tiles[codegen.stored(op)]
    picks = picked(layout, source)
    owner = codegen.threads.owner(layout)
    ragged = ragged_width(op, layout)
    for registers, address, predicate in _chunks(codegen, op, layout, op.value, ragged):
        neighbours = [values[picks[register]] for register in registers]
        predicate = codegen.both(predicate, owner)
        if ragged:
            chunk = _ragged_chunk(codegen, op, layout, registers[0], address, predicate, op.value)
            store_unaligned(codegen.b, chunk, neighbours, pointer_dtype(op), codegen.threads.lane, layout)
        else:
            store_chunk(codegen.b, address, neighbours, pointer_dtype(op), predicate, space_of(op.pointer))


def _ragged_chunk(
    codegen: KernelCodegen,
    op: tile.LoadOp | tile.StoreOp,
    layout: Layout,
    register: int,
    address: V,
    predicate: V | None,
    value: SSAValue | None = None,
) -> Chunk:
    axis = layout.vector.axis
    assert axis is not None
    place = codegen.b.add(codegen.threads.place(layout, axis), i32(layout.offsets[register][axis]))
    shifted = access_of(op, layout.shape).shifted
    return Chunk(address, codegen.b.sub(_bound(codegen, op, layout, axis, value), place), predicate, shifted)


def _chunks(
    codegen: KernelCodegen,
    op: tile.LoadOp | tile.StoreOp,
    layout: Layout,
    value: SSAValue | None = None,
    width: int = 0,
) -> list[tuple[list[int], V, V | None]]:
    """The registers that are moved together, the address of the first, and whether they exist."""
    b, dtype = codegen.b, pointer_dtype(op)
    strides = op.strides.data
    bounds = [_bound(codegen, op, layout, axis, value) for axis in range(layout.rank)]
    base = codegen.size(op.offset.data[0], op.indices)
    for axis, stride in enumerate(strides):
        place = wide(b, codegen.threads.place(layout, axis))
        base = b.add(base, b.mul(place, codegen.size(stride, op.indices)))
    origin = b.add(codegen.pointers[op.pointer], b.mul(base, i64(dtype.bytes)))
    width = width or _chunk_width(codegen, op, layout, value)
    chunks: list[tuple[list[int], V, V | None]] = []
    for start in range(0, layout.count, width):
        offset = layout.offsets[start]
        ahead = i64(0)
        for axis, stride in enumerate(strides):
            ahead = b.add(ahead, b.mul(i64(offset[axis]), codegen.size(stride, op.indices)))
        address = b.add(origin, b.mul(ahead, i64(dtype.bytes)))
        conditions = [codegen.exists(layout, axis, offset[axis], bounds[axis]) for axis in range(layout.rank)]
        chunks.append((list(range(start, start + width)), address, codegen.both(*conditions)))
    return chunks


def _bound(
    codegen: KernelCodegen, op: tile.LoadOp | tile.StoreOp, layout: Layout, axis: int, value: SSAValue | None
) -> V:
    limits = [codegen.size(op.extents.data[axis], op.indices)]
    if value is not None and tile.tile_type(value).sizes[axis] != 1:
        limits += [codegen.size(*limit) for limit in codegen.limits.of(value, axis)]
    return codegen.least(limits, layout.shape[axis])


def _chunk_width(codegen: KernelCodegen, op: tile.LoadOp | tile.StoreOp, layout: Layout, value: SSAValue | None) -> int:
    """How many neighbours are moved at once: they lie side by side, aligned, and exist together."""
    vector = layout.vector
    if vector.axis is None or op.strides.data[vector.axis] != 1:
        return 1
    width = min(layout.neighbours, WIDEST // pointer_dtype(op).bytes)
    sizes = [op.offset.data[0], op.extents.data[vector.axis], layout.shape[vector.axis]]
    sizes += [stride for axis, stride in enumerate(op.strides.data) if axis != vector.axis and layout.shape[axis] > 1]
    steps = [divisor_of(size, op.indices) for size in sizes]
    if value is not None:
        steps += [divisor_of(*limit) for limit in codegen.limits.of(value, vector.axis)]
    while any(step % width for step in steps):
        width //= 2
    return width
