"""The shared memory of dots without tensor cores."""

from __future__ import annotations

from math import prod

from weft.ir.types import DType, f32
from weft.tile import dialect as tile


def sum_type(dtype: DType) -> DType:
    """What dots are summed in: narrow floats in f32."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


_MOST_BYTES = 65536


def dot_bytes(op: tile.DotOp) -> int:
    """The shared memory for a part of both operands."""
    return sum(map(prod, padded_sides(op, depth_at_once(op)))) * sum_type(tile.tile_type(op.out).dtype).bytes


def depth_at_once(op: tile.DotOp) -> int:
    """How much of K is in shared memory at a time."""
    depth, size = tile.tile_type(op.a).sizes[1], sum_type(tile.tile_type(op.out).dtype).bytes
    while depth > 1 and sum(map(prod, padded_sides(op, depth))) * size > _MOST_BYTES:
        depth = -(-depth // 2)
    return depth


def padded_sides(op: tile.DotOp, depth: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The sides of the operands' parts, rows one element apart: columns then lie in different banks."""
    return (tile.tile_type(op.a).sizes[0], depth + 1), (depth, tile.tile_type(op.b).sizes[1] + 1)
