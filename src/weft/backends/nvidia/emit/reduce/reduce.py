"""`tile.reduce` on a GPU: what exists is combined, and of extrema the first is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import register_type
from weft.backends.llvm.values import const, i64
from weft.backends.nvidia.emit.block import i32, wide
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import emit_map
from weft.backends.nvidia.emit.reduce.across_threads import Exchange, Parts, reduce_axis
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.shared_bytes import part_bytes
from weft.ir.types import DType
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.ReduceOp)
def emit_reduce(codegen: KernelCodegen, op: tile.ReduceOp) -> None:
    b, layout, axis = codegen.b, layout_of(op.value), op.axis.value.data
    dtype, combiner = tile.tile_type(op.value).dtype, COMBINERS[op.kind.data]
    identity = const(combiner.identity(dtype), register_type(dtype))
    extent = codegen.extent(op.value, axis) if layout.shape[axis] > 1 else i32(1)
    parts: list[Parts] = []
    for offset, value in zip(layout.offsets, codegen.tiles[op.value], strict=True):
        there = codegen.exists(layout, axis, offset[axis], extent)
        if there is not None:
            value = b.select(there, value, identity)
        if not combiner.indexed:
            parts.append((value,))
            continue
        place = wide(b, b.add(codegen.threads.place(layout, axis), i32(offset[axis])))
        parts.append((value, place if there is None else b.select(there, place, i64(-1))))

    def combine(x: Parts, y: Parts) -> Parts:
        if combiner.indexed:
            return first_extremum(b, x, y, "gt" if op.kind.data == "argmax" else "lt", dtype)
        return (emit_map(b, combiner.function, [x[0], y[0]], dtype),)

    via = Exchange(integer(op, SHARED), part_bytes(op), codegen.crossing if CROSSES in op.attributes else None)
    results = reduce_axis(b, codegen.threads, layout, axis, parts, combine, via)
    codegen.tiles[op.out] = [result[-1] for result in results]


def first_extremum(b: Function, x: Parts, y: Parts, better: str, dtype: DType) -> Parts:
    """Of two values with positions (-1: none), the better one, NaN before all, and of equal ones the first."""
    wins = emit_map(b, better, [y[0], x[0]], dtype)
    same = emit_map(b, "eq", [y[0], x[0]], dtype)
    if dtype.is_float:
        nan_x, nan_y = (emit_map(b, "isnan", [value], dtype) for value in (x[0], y[0]))
        wins = b.binary("or", wins, b.binary("and", nan_y, b.binary("xor", nan_x, const(True, "i1"))))
        same = b.binary("or", same, b.binary("and", nan_x, nan_y))
    wins = b.binary("or", wins, b.binary("and", same, b.icmp("ult", y[1], x[1])))  # -1 is the last, unsigned
    wins = b.binary("or", wins, b.icmp("slt", x[1], i64(0)))
    wins = b.binary("and", wins, b.icmp("sge", y[1], i64(0)))
    return b.select(wins, y[0], x[0]), b.select(wins, y[1], x[1])
