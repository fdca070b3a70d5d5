"""Code for what moves elements within a tile: views, computed positions, counts of equal numbers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weft.backends.llvm.cast import register_type
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32, load_shared, shared_pointer, store_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.shared_tiles import is_beyond, place_of, read_tile, within, write_tile
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.mma import SqueezeOp
from weft.backends.nvidia.ir.shared_bytes import register_bytes, stays_in_registers
from weft.backends.nvidia.ir.view_layouts import kept_registers
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(SqueezeOp)
def emit_squeeze(codegen: KernelCodegen, op: SqueezeOp) -> None:
    codegen.tiles[op.out] = codegen.tiles[op.value]


@EMITTERS.register(collective_ops.ViewOp)
def emit_view(codegen: KernelCodegen, op: collective_ops.ViewOp) -> None:
    layout = layout_of(op.out)
    if stays_in_registers(op):
        registers = codegen.tiles[op.value]
        codegen.tiles[op.out] = [registers[number] for number in kept_registers(op, layout)]
        return
    start = integer(op, SHARED)
    write_tile(codegen, op.value, start)
    codegen.threads.barrier()
    codegen.tiles[op.out] = read_tile(codegen, op.value, layout, start, op.steps, op.offset.value.data)


@EMITTERS.register(collective_ops.TakeOp)
def emit_take(codegen: KernelCodegen, op: collective_ops.TakeOp) -> None:
    """The tile goes to shared memory, and each thread reads what its indices say."""
    b, type_, layout, axis = codegen.b, tile.tile_type(op.value), layout_of(op.out), op.axis.value.data
    start, size = integer(op, SHARED), register_bytes(type_.dtype)
    write_tile(codegen, op.value, start)
    codegen.threads.barrier()
    strides = list(collective_ops.row_major(type_.sizes))
    along, strides[axis] = strides[axis], 0
    values: list[V] = []
    for register, index in enumerate(codegen.registers_of(op.indices, layout)):
        wide = tile.tile_type(op.indices).dtype.bits
        short = index if wide == 32 else b.convert("trunc" if wide > 32 else "sext", index, "i32")
        # An index that is none reads some element, not somebody else's memory.
        chosen = within(codegen, short, type_.sizes[axis])
        place = b.add(place_of(codegen, layout, register, strides), b.mul(chosen, i32(along)))
        if is_beyond(layout):
            place = within(codegen, place, prod(type_.sizes))
        values.append(load_shared(b, register_type(type_.dtype), start, place, size))
    codegen.tiles[op.out] = values


@EMITTERS.register(collective_ops.HistogramOp)
def emit_histogram(codegen: KernelCodegen, op: collective_ops.HistogramOp) -> None:
    """Counters in shared memory: cleared, counted up, read."""
    b, threads, bins = codegen.b, codegen.threads, tile.tile_type(op.out).sizes[0]
    start, source, layout = integer(op, SHARED), layout_of(op.value), layout_of(op.out)
    number = b.add(b.mul(threads.warp, i32(32)), threads.lane)
    for first in range(0, bins, source.threads):
        place = b.add(number, i32(first))
        if first + source.threads <= bins:
            store_shared(b, i32(0), start, place, 4)
        else:
            with b.when(b.icmp("slt", place, i32(bins))):
                store_shared(b, i32(0), start, place, 4)
    threads.barrier()
    held, owner = codegen.held(source), threads.owner(source)
    masks = codegen.registers_of(op.mask, source)
    for register, value in enumerate(codegen.tiles[op.value]):
        counted = b.icmp("ult", value, V(value.type, str(bins)))
        predicate = codegen.both(counted, held[register], owner, masks[register] if masks else None)
        assert predicate is not None
        with b.when(predicate):
            pointer = shared_pointer(b, start, b.convert("trunc", value, "i32"), 4)
            b.emit("i32", f"atomicrmw add {pointer}, i32 1 monotonic")
    threads.barrier()
    counts: list[V] = []
    for register in range(layout.count):
        place = place_of(codegen, layout, register, (1,))
        counts.append(load_shared(b, "i32", start, within(codegen, place, bins) if is_beyond(layout) else place, 4))
    codegen.tiles[op.out] = counts
