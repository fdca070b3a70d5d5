"""Dots of tiles by `wgmma` as LLVM code: begun, with their left operand in registers or in a slot, and waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.dot.merged_wgmma import joined, merged_slot, merged_sums, split_sums
from weft.backends.nvidia.emit.dot.wgmma import descriptor, multiply, wait
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import pair
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.register_operands import register_operand
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.ir.types import DType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


_GROUP_WARPS = 4
_GROUP_THREADS = 32 * _GROUP_WARPS


@EMITTERS.register(WgmmaOp)
def emit_wgmma(codegen: KernelCodegen, op: WgmmaOp) -> None:
    """Begin a dot, with those that are one with it when the last of them comes."""
    b, layout = codegen.b, layout_of(op.out)
    # What one warp group multiplies is bound by memory.
    products = joined(op) if layout.warp_count > _GROUP_WARPS else [op]
    if op is not products[-1]:
        return
    a_type, b_type = op.a.type, merged_slot(products)
    rows = tile.tile_type(op.out).sizes[0] * _GROUP_WARPS // layout.warp_count
    right = descriptor(b, codegen.slots[products[0].b], b_type, 0), b_type
    if isinstance(a_type, SlotType):
        group = b.binary("lshr", codegen.threads.warp, i32(2))
        # A warp group's rows: whole lines further on where rows are lines, whole blocks where they are not.
        apart = rows * LINE if a_type.axis == 1 else rows * a_type.dtype.bytes // LINE * a_type.lines * LINE
        start = b.add(codegen.slots[op.a], b.mul(group, i32(apart)))
        left = descriptor(b, start, a_type, 1), a_type
    else:
        left = _words(codegen, op, rows)
        for product in products:
            before = product.accumulator  # of a dot that is under way as well, or there is nothing to find
            codegen.in_flight[product.out] = [*codegen.in_flight.get(before, ()), *left] if before else left
    totals = [codegen.tiles[product.accumulator] for product in products if product.accumulator is not None]
    values = multiply(b, left, right, merged_sums(totals, rows) if totals else None, rows)
    for product, part in zip(products, split_sums(values, len(products), rows), strict=True):
        codegen.tiles[product.out] = part


def _words(codegen: KernelCodegen, op: WgmmaOp, rows: int) -> list[V]:
    """A left operand's fragments. A tile that was brought into their layout after it was narrowed is packed here."""
    values, depth = codegen.tiles[op.a], tile.tile_type(op.a).sizes[1]
    words = rows * depth // (_GROUP_THREADS * 2)
    if len(values) == words:
        return values
    assert isinstance(op.b.type, SlotType) and len(values) == 2 * words
    return _pairs(codegen, values, op.b.type.dtype)


def _pairs(codegen: KernelCodegen, values: list[V], dtype: DType) -> list[V]:
    both = zip(values[::2], values[1::2], strict=True)
    return [pair(codegen.b, low, high, dtype.name, pure=False) for low, high in both]


@EMITTERS.register(WgmmaWaitOp)
def emit_wgmma_wait(codegen: KernelCodegen, op: WgmmaWaitOp) -> None:
    held = [word for value in op.values for word in codegen.in_flight.get(value, ())]
    values = [each for value in op.values for each in codegen.tiles[value]]
    results = wait(codegen.b, values, op.pending.value.data, held)
    start = 0
    for value, out in zip(op.values, op.outs, strict=True):
        count = len(codegen.tiles[value])
        codegen.tiles[out] = results[start : start + count]
        start += count


def packed_for_dot(codegen: KernelCodegen, op: tile.MapOp) -> list[V] | None:
    """The words of a tile that is narrowed for dots alone, which read it from registers.

    Two neighbouring 8x8 blocks of an accumulator, narrowed, are just what a dot reads as its left operand. They
    stay where they are packed: it is one register instead of two.
    """
    if narrowed_to(op) is None or not op.out.uses or (dtype := register_operand(op.out, WgmmaOp)) is None:
        return None
    return _pairs(codegen, codegen.tiles[op.args[0]], dtype)


def begins_dot(op: tile.MapOp) -> bool:
    """Whether a tile is what dots begin with, and nothing else."""
    uses = list(op.out.uses)
    return bool(uses) and all(isinstance(use.operation, WgmmaOp) and use.index == 2 for use in uses)
