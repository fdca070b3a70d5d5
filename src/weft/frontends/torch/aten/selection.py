"""The element of a given rank along a dimension, found bit by bit: the lines are read often, and never copied.

Floats have the order of their bits, as signed numbers, once those below their sign are turned round for negative ones.
So the greatest number that no more elements are below than the rank says is built from its highest bit on: whether a
bit is set is decided by counting the elements below the number with that bit. Sorting would move every element, with
its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.types import DType, f32, f64, i32, i64
from weft.ops.control import loop
from weft.ops.graph import GraphBuilder

LEAST_SELECTED = 64
"""Elements of a line from which on selecting takes less time than sorting, or as much."""


def element_of_rank(b: ImportBuilder, x: SSAValue, rank: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    """The element that `rank` others, a number for each line, come before; and the first place where it stands.

    A NaN comes after all numbers.
    """
    wide = b.to(x, _compared(b.dtype(x)))
    dtype = b.dtype(wide)
    bits = i64 if dtype in (f64, i64) else i32
    lines = tuple(1 if d == dim else size for d, size in enumerate(b.shape(x)))
    length = b.shape(x)[dim]
    counted = i32 if isinstance(length, int) and length < 1 << 31 else i64  # twice as many in a vector
    rank = b.to(rank, counted)
    lowest = b.expand(b.number(-(1 << (bits.bits - 1)), bits), lines)

    def turn(
        inner: GraphBuilder, index: SSAValue, states: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[Sequence[SSAValue], Sequence[SSAValue]]:
        found, bit = states
        tried = inner.bitwise_xor(found, bit)
        below = inner.lt(wide, _number(inner, tried, dtype))
        count = inner.sum(inner.cast(below, dtype=counted), dims=(dim,), keep=True)
        taken = inner.le(count, rank)
        if dtype.is_float:  # beyond infinity are the bits of NaNs, which nothing is below
            taken = inner.logical_and(taken, inner.le(tried, _code(inner, float("inf"), dtype, bits)))
        two = inner.full(value=2, shape=(), dtype=bits)
        return (inner.where(taken, tried, found), inner.abs(inner.floordiv(bit, two))), ()

    highest = b.number(-(1 << (bits.bits - 1)), bits)
    (code, _), _ = loop(b, turn, (lowest, highest), trip_count=bits.bits)
    same = b.emit("eq", wide, _number(b, code, dtype))
    if dtype.is_float:
        there = b.emit("logical_not", b.emit("isnan", wide))
        count = b.emit("sum", b.to(there, counted), dims=(dim,), keep=True)
        same = b.emit("where", b.emit("le", count, rank), b.emit("isnan", wide), same)
    place = b.emit("argmax", b.to(same, i32), dims=(dim,), keep=True)
    return b.emit("gather", x, place, dim=dim), place


def _compared(dtype: DType) -> DType:
    """A type of 32 or 64 bits with the same numbers."""
    if dtype.is_float:
        return dtype if dtype == f64 else f32
    return dtype if dtype.bits == 64 else i32


def _code(b: GraphBuilder, number: float, dtype: DType, bits: DType) -> SSAValue:
    """A positive number's bits."""
    return b.bitcast(b.full(value=number, shape=(), dtype=dtype), dtype=bits)


def _number(b: GraphBuilder, code: SSAValue, dtype: DType) -> SSAValue:
    """The number that has a code: a signed integer of the same order."""
    if not dtype.is_float:
        return code
    bits = b.tensor(code).dtype
    zero, below = (b.full(value=value, shape=(), dtype=bits) for value in (0, (1 << (bits.bits - 1)) - 1))
    turned = b.where(b.lt(code, zero), b.bitwise_xor(code, below), code)
    return b.bitcast(turned, dtype=dtype)
