"""Global memory at computed indices: neighbours that are known to lie side by side are moved at once."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.backends.llvm.cast import register_type
from weft.backends.llvm.values import V, const, i64
from weft.backends.nvidia.emit.block import i32, load_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import emit_map
from weft.backends.nvidia.emit.memory.global_memory import load_chunk, store_chunk
from weft.backends.nvidia.emit.memory.shared_tiles import read_tile, write_registers
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import SHARED, VECTOR, integer, layout_of, layouts_of
from weft.backends.nvidia.ir.scratch import space_of
from weft.backends.nvidia.ir.shared_bytes import is_awaited, register_bytes
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


def address_of(codegen: KernelCodegen, pointer: V, offset: V, size: int) -> V:
    """The address of the element that lies `offset` from where a pointer points."""
    b = codegen.b
    wide = offset
    if offset.type != "i64":
        wide = b.convert("sext", offset, "i64") if offset.name.startswith("%") else i64(int(offset.name))
    return b.add(pointer, b.mul(wide, i64(size)))


@EMITTERS.register(tile.GatherOp)
def emit_gather(codegen: KernelCodegen, op: tile.GatherOp) -> None:
    b, layout, dtype = codegen.b, layout_of(op.out), pointer_dtype(op)
    type_, width = tile.tile_type(op.out), integer(op, VECTOR, 1)
    number = from_attribute(op.other)
    assert isinstance(number, int | float)
    # Where memory cannot hold it, it takes the place of what was not read.
    other = None if _has(dtype, number) else const(number, register_type(type_.dtype))
    offsets, masks = codegen.registers_of(op.offsets, layout), codegen.registers_of(op.mask, layout)
    exists = codegen.existing(op.out, layout)
    if is_awaited(op):
        exists = [codegen.both(each, codegen.threads.owner(layout)) for each in exists]
    values: list[V] = []
    for first in range(0, layout.count, width):
        address = address_of(codegen, codegen.pointers[op.pointer], offsets[first], dtype.bytes)
        predicate = codegen.both(exists[first], masks[first] if masks else None)
        loaded = load_chunk(b, address, dtype, width, predicate, space_of(op.pointer), 0 if other else number)
        for value in loaded:
            value = codegen.widened(value, dtype, type_.dtype)
            values.append(value if predicate is None or other is None else b.select(predicate, value, other))
    if is_awaited(op):  # one thread has read it for all
        start = integer(op, SHARED)
        write_registers(codegen, values, layout, start, register_bytes(type_.dtype))
        codegen.threads.barrier()
        values = read_tile(codegen, op.out, layout, start, ())
    codegen.tiles[op.out] = values


def _has(dtype: DType, number: float) -> bool:
    """Whether a type has a number, but for NaNs."""
    with np.errstate(all="ignore"):
        return float(np.array(number).astype(dtype.numpy)) == number


@EMITTERS.register(tile.ScatterOp)
def emit_scatter(codegen: KernelCodegen, op: tile.ScatterOp) -> None:
    if op.unordered is None:
        _one_by_one(codegen, op)
        return
    dtype, (layout,), width = pointer_dtype(op), layouts_of(op), integer(op, VECTOR, 1)
    offsets, values, masks = (codegen.registers_of(v, layout) for v in (op.offsets, codegen.stored(op), op.mask))
    exists, owner = codegen.existing(op.offsets, layout), codegen.threads.owner(layout)
    for first in range(0, layout.count, width):
        address = address_of(codegen, codegen.pointers[op.pointer], offsets[first], dtype.bytes)
        predicate = codegen.both(exists[first], owner, masks[first] if masks else None)
        store_chunk(codegen.b, address, values[first : first + width], dtype, predicate, space_of(op.pointer))


def _one_by_one(codegen: KernelCodegen, op: tile.ScatterOp) -> None:
    """Writes in order: all goes to shared memory, and one thread goes through it."""
    b, dtype, (layout,) = codegen.b, pointer_dtype(op), layouts_of(op)
    type_, count, start = tile.tile_type(op.value), prod(layout.shape), integer(op, SHARED)
    size = register_bytes(type_.dtype)
    offsets, values, masks = (codegen.registers_of(v, layout) for v in (op.offsets, op.value, op.mask))
    exists = codegen.existing(op.offsets, layout)
    wanted = [codegen.both(e, m) for e, m in zip(exists, masks or [None] * len(exists), strict=True)]
    flags = [condition or const(True, "i1") for condition in wanted]
    at_values, at_flags = start + 8 * count, start + (8 + size) * count
    wide = [b.convert("sext", o, "i64") if o.type != "i64" else o for o in offsets]
    for registers, place, bytes_ in ((wide, start, 8), (values, at_values, size), (flags, at_flags, 1)):
        write_registers(codegen, registers, layout, place, bytes_)
    codegen.threads.barrier()
    number = b.add(b.mul(codegen.threads.warp, i32(32)), codegen.threads.lane)
    with ExitStack() as nest:
        nest.enter_context(b.when(b.icmp("eq", number, i32(0))))
        turn = nest.enter_context(b.loop(i32(0), i32(count), i32(1)))
        with b.when(load_shared(b, "i1", at_flags, turn, 1)):
            address = address_of(
                codegen, codegen.pointers[op.pointer], load_shared(b, "i64", start, turn, 8), dtype.bytes
            )
            value = load_shared(b, register_type(type_.dtype), at_values, turn, size)
            if op.kind.data != "assign":
                (old,) = load_chunk(b, address, dtype, 1, None)
                value = emit_map(b, op.kind.data, [codegen.widened(old, dtype, type_.dtype), value], type_.dtype)
            store_chunk(b, address, [value], dtype, None)
