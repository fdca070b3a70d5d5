"""Layouts of dots and of their operands: those that the unit which multiplies asks for."""

from __future__ import annotations

from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.mma import MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.rings import RingToRegistersOp
from weft.backends.nvidia.ir.tma_store import TruncatePackOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp, words_layout
from weft.backends.nvidia.layout.anchors import squeezed
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment
from weft.tile import dialect as tile


@LAYOUT_RULES.register(tile.DotOp)
def lay_out_dot(a: Assignment, op: tile.DotOp) -> None:
    for number, operand in enumerate((op.a, op.b)):
        a.take(op, number, a.natural(operand))
    layout = a.anchors.of(tile.tile_type(op.out).sizes)
    if op.accumulator is not None:
        a.take(op, 2, layout)
    a.settle(op, [layout])


@LAYOUT_RULES.register(WgmmaOp)
def lay_out_wgmma(a: Assignment, op: WgmmaOp) -> None:
    layout = a.anchors.of(tile.tile_type(op.out).sizes)
    if isinstance(op.a.type, tile.TileType):
        a.take(op, 0, a.anchors.of(op.a.type.sizes))
    if op.accumulator is not None:
        a.take(op, 2, layout)
    a.settle(op, [layout])


@LAYOUT_RULES.register(WgmmaWaitOp)
def lay_out_wgmma_wait(a: Assignment, op: WgmmaWaitOp) -> None:
    a.settle(op, [a.natural(value) for value in op.values])


@LAYOUT_RULES.register(MmaOp)
def lay_out_mma(a: Assignment, op: MmaOp) -> None:
    a.home[op.out] = layout_of(op.out)
    if op.accumulator is not None:
        a.take(op, 2, layout_of(op.out))


@LAYOUT_RULES.register(PackOp)
def lay_out_pack(a: Assignment, op: PackOp) -> None:
    a.home[op.out] = layout_of(op.out)
    a.take(op, 0, layout_of(op.out))


@LAYOUT_RULES.register(tile.DequantizeOp)
def lay_out_dequantize(a: Assignment, op: tile.DequantizeOp) -> None:
    a.home[op.out] = layout_of(op.out)


@LAYOUT_RULES.register(SqueezeOp)
def lay_out_squeeze(a: Assignment, op: SqueezeOp) -> None:
    layout = a.natural(op.value)
    a.take(op, 0, layout)
    a.settle(op, [squeezed(layout)])


@LAYOUT_RULES.register(RingToRegistersOp)
def lay_out_ring_to_registers(a: Assignment, op: RingToRegistersOp) -> None:
    a.settle(op, [a.anchors.of(tile.tile_type(op.out).sizes)])


@LAYOUT_RULES.register(TruncatePackOp)
def lay_out_truncate_pack(a: Assignment, op: TruncatePackOp) -> None:
    layout = a.anchors.of(tile.tile_type(op.value).sizes)
    a.take(op, 0, layout)
    a.settle(op, [words_layout(layout)])
