"""Conversions as LLVM code: a tile goes through shared memory, row by row, from the layout it is in to another one."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weft.backends.llvm.cast import register_type
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32, load_shared, store_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.ir.dialect import SHARED, ConvertOp, integer, layout_of
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.shared_bytes import register_bytes, row_pitch
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(ConvertOp)
def emit_convert(codegen: KernelCodegen, op: ConvertOp) -> None:
    b, type_, source, target = codegen.b, tile.tile_type(op.out), layout_of(op.value), layout_of(op.out)
    size, place = register_bytes(type_.dtype), integer(op, SHARED)
    exists, owner = codegen.held(source), codegen.threads.owner(source)
    codegen.threads.gather()
    for register, value in enumerate(codegen.tiles[op.value]):
        index = _row_major(codegen, source, register, size)
        predicate = codegen.both(exists[register], owner)
        if predicate is None:
            store_shared(b, value, place, index, size)
        else:
            with b.when(predicate):
                store_shared(b, value, place, index, size)
    codegen.threads.barrier()
    last = i32(prod(type_.sizes[:-1]) * row_pitch(type_.sizes[-1], size) - 1)
    values: list[V] = []
    for register in range(target.count):
        index = _row_major(codegen, target, register, size)
        if any(target.covered(axis) > target.shape[axis] for axis in range(target.rank)):
            index = b.intrinsic("umin", index, last)  # what does not exist is read from somewhere
        values.append(load_shared(b, register_type(type_.dtype), place, index, size))
    codegen.tiles[op.out] = values


def _row_major(codegen: KernelCodegen, layout: Layout, register: int, size: int) -> V:
    """Where a register's element lies in a tile that stands in shared memory row by row."""
    b, index, pitch = codegen.b, i32(0), 1
    for axis in range(layout.rank - 1, -1, -1):
        place = b.add(codegen.threads.place(layout, axis), i32(layout.offsets[register][axis]))
        index = b.add(index, b.mul(place, i32(pitch)))
        pitch *= row_pitch(layout.shape[axis], size) if axis == layout.rank - 1 else layout.shape[axis]
    return index
