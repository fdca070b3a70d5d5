"""Dots of tiles by `mma.sync` as LLVM code: which words of the operands an instruction takes, codes or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.dot.dequantize import Decoder
from weft.backends.nvidia.emit.dot.mma import multiply
from weft.backends.nvidia.emit.dot.per_lane_dot import multiply_per_lane
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.mma import MmaOp
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(MmaOp)
def emit_mma(codegen: KernelCodegen, op: MmaOp) -> None:
    total, fragments = op.accumulator, op.fragments
    left, codes = codegen.tiles[op.a], op.b.owner
    words, columns = fragments.vector // 2, fragments.tiles_n

    def right(chunk: int, column: int, part: int, parts: int) -> Sequence[V]:
        first = (chunk * columns + column) * words + part * (words // parts)
        return codegen.tiles[op.b][first : first + words // parts]

    sums = [V("float", "0.0")] * layout_of(op.out).count if total is None else codegen.tiles[total]
    if isinstance(codes, tile.DequantizeOp):
        decoder = Decoder(codegen, codes)
        if fragments.apart:
            codegen.tiles[op.out] = multiply_per_lane(codegen, op, decoder, sums)
            return
        left = decoder.ordered(left)

        def right(chunk: int, column: int, part: int, parts: int) -> Sequence[V]:
            return decoder.words((chunk * columns + column) * parts + part, fragments.vector // parts)

    codegen.tiles[op.out] = multiply(codegen.b, fragments, left, right, sums, op.dtype.data)
