"""Tiles in shared memory, row by row: how threads write what they hold and read what they need."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.cast import register_type
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32, load_shared, store_shared
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.shared_bytes import register_bytes
from weft.tile import dialect as tile
from weft.tile.collective_ops import row_major

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


def place_of(codegen: KernelCodegen, layout: Layout, register: int, strides: Sequence[int], offset: int = 0) -> V:
    """`offset + sum(strides * index)` of the element that a register holds (i32)."""
    b, total = codegen.b, i32(offset)
    for axis, stride in enumerate(strides):
        index = b.add(codegen.threads.place(layout, axis), i32(layout.offsets[register][axis]))
        total = b.add(total, b.mul(index, i32(stride)))
    return total


def is_beyond(layout: Layout) -> bool:
    """Whether a layout has places that its tile does not have."""
    return any(layout.covered(axis) > size for axis, size in enumerate(layout.shape))


def within(codegen: KernelCodegen, place: V, count: int) -> V:
    """A place, or the last one where it lies beyond: what does not exist is read from somewhere."""
    return codegen.b.intrinsic("umin", place, i32(count - 1))


def write_tile(codegen: KernelCodegen, value: SSAValue, start: int) -> None:
    """Write a tile to shared memory; each element once."""
    type_, layout = tile.tile_type(value), layout_of(value)
    write_registers(codegen, codegen.tiles[value], layout, start, register_bytes(type_.dtype))


def write_registers(codegen: KernelCodegen, values: Sequence[V], layout: Layout, start: int, size: int) -> None:
    b, strides = codegen.b, row_major(layout.shape)
    held, owner = codegen.held(layout), codegen.threads.owner(layout)
    for register, value in enumerate(values):
        predicate = codegen.both(held[register], owner)
        place = place_of(codegen, layout, register, strides)
        if predicate is None:
            store_shared(b, value, start, place, size)
        else:
            with b.when(predicate):
                store_shared(b, value, start, place, size)


def read_tile(
    codegen: KernelCodegen, value: SSAValue, layout: Layout, start: int, strides: Sequence[int], offset: int = 0
) -> list[V]:
    """What registers of a layout hold of a tile in shared memory, at `offset + sum(strides * index)`."""
    type_ = tile.tile_type(value)
    count, size = max(1, prod(type_.sizes)), register_bytes(type_.dtype)
    result: list[V] = []
    for register in range(layout.count):
        place = place_of(codegen, layout, register, strides, offset)
        if is_beyond(layout):
            place = within(codegen, place, count)
        result.append(load_shared(codegen.b, register_type(type_.dtype), start, place, size))
    return result
