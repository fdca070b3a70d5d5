"""Searching sorted sequences, and counting into bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.shape import flat
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_places, check_that
from weft.ir.expr import product
from weft.ir.types import DType, Tensor, boolean, f32, i8, i16, i32, i64
from weft.ops.elementwise.select import holds

Number = bool | int | float
_FEW_BINS, _FEW_INTEGERS, _FEW_ON_PROCESSOR = 256, 4096, 4
"""Each bin looks at all numbers, if they are few, which takes less for integers; into more, each is added in turn, at
which a processor is quick."""


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(b: ImportBuilder, line: SSAValue, values: SSAValue | Number, **options: Any) -> SSAValue:
    order: SSAValue | None = options.get("sorter")
    right = bool(options.get("right")) or options.get("side") == "right"
    if order is not None:
        if b.dtype(order) != i64:
            raise UnsupportedError("an order that is not of i64, which torch refuses")
        check_places(b, order, b.rank(order) - 1, b.shape(line)[-1])
    return _inserted(b, line, values, right, () if order is None else (order,))


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(b: ImportBuilder, values: SSAValue | Number, line: SSAValue, **options: Any) -> SSAValue:
    return _inserted(b, line, values, bool(options.get("right")), ())


def _inserted(
    b: ImportBuilder, line: SSAValue, values: SSAValue | Number, right: bool, order: Sequence[SSAValue]
) -> SSAValue:
    shape = b.result.shape
    dtype = b.dtype(line)
    if not isinstance(values, SSAValue):
        dtype = _common(dtype, values)
        values = b.number(values, dtype)
    if dtype == boolean or b.dtype(values) != dtype:
        raise UnsupportedError(f"values of {b.dtype(values)} in a sequence of {dtype}")
    return b.view(b.emit("searchsorted", b.to(line, dtype), b.view(values, shape), *order, right=right), shape)


def _common(dtype: DType, number: Number) -> DType:
    """The type in which the elements of a tensor are compared with a number."""
    if isinstance(number, float) and not dtype.is_float:
        return f32
    if dtype.is_integer and not holds(dtype, int(number)):
        raise UnsupportedError(f"{number} in a sequence of {dtype}")
    return dtype


@aten("histc")
def histc(b: ImportBuilder, x: SSAValue, bins: int = 100, min: float = 0, max: float = 0) -> SSAValue:
    """How many numbers lie in each of `bins` intervals of one size; those outside of all of them are not counted."""
    result, row = b.result, flat(b, x)
    if b.dtype(row).is_integer:
        place = _whole_numbers(b, row, bins, min, max)
    else:
        place = _intervals(b, row, bins, *_edges(b, row, min, max))
    few = _FEW_INTEGERS if b.dtype(row).is_integer else _FEW_BINS
    if not b.capabilities.thread_blocks:
        few = _FEW_ON_PROCESSOR
    # Places are what all numbers take memory for.
    narrow = next(dtype for dtype in (i8, i16, i32, i64) if holds(dtype, bins))
    if bins <= few:
        place, numbers = b.to(place, narrow), b.to(b.iota_of(bins), narrow)
        same = b.emit("eq", b.view(place, (*b.shape(row), 1)), b.view(numbers, (1, bins)))
        return b.emit("sum", b.to(same, result.dtype), dims=(0,), keep=False)
    # What lies in no interval is counted in one more; a float ends to count at 2^24.
    place = b.to(b.emit("where", b.emit("lt", place, b.number(0, i64)), b.number(bins, i64), place), narrow)
    counts, ones = b.zeros(Tensor(i64, (bins + 1,))), b.expand(b.number(1, i64), b.shape(row))
    counts = b.emit("index_put", counts, place, ones, dims=(0,), position=0, accumulate=True)
    return b.to(b.emit("slice", counts, starts=(0,), shape=(bins,), steps=(1,)), result.dtype)


def _whole_numbers(b: ImportBuilder, row: SSAValue, bins: int, min: float, max: float) -> SSAValue:
    """Which of as many integers each one is, and -1 if it is none of them."""
    first = int(min)
    # An empty range stands for that of the data.
    if min == max or (first, first + bins - 1) != (min, max):
        raise UnsupportedError("a histogram of integers, but of single ones")
    place = b.emit("sub", b.to(row, i64), b.number(first, i64))
    inside = b.emit("logical_and", *(b.emit(f, place, b.number(n, i64)) for f, n in (("ge", 0), ("lt", bins))))
    return b.emit("where", inside, place, b.number(-1, i64))


def _edges(b: ImportBuilder, row: SSAValue, min: float, max: float) -> tuple[SSAValue, SSAValue]:
    """The ends of the range: those given or, if they are equal, those of the data, or 1 around a single number."""
    dtype = b.dtype(row)
    if min != max:
        return b.number(min, dtype), b.number(max, dtype)
    if product(b.shape(row)) == 0:
        low, high = b.number(min, dtype), b.number(max, dtype)
    else:
        low, high = (b.emit(name, row, dims=(0,), keep=False) for name in ("min", "max"))
        wrong = b.emit("logical_not", b.emit("logical_and", *(b.emit("isfinite", edge) for edge in (low, high))))
        check_that(b, "data", "the range of a histogram is that of its data, which is not finite", wrong)
    single, one = b.emit("eq", low, high), b.number(1, dtype)
    return tuple(b.emit("where", single, b.emit(move, edge, one), edge) for move, edge in (("sub", low), ("add", high)))  # type: ignore[return-value]


def _intervals(b: ImportBuilder, row: SSAValue, bins: int, low: SSAValue, high: SSAValue) -> SSAValue:
    """In which interval each number lies, and -1 if in none; the last one holds its upper end."""
    scaled = b.emit("mul", b.emit("sub", row, low), b.number(bins, b.dtype(row)))
    share = b.emit("div", scaled, b.emit("sub", high, low))
    inside = b.emit("logical_and", b.emit("ge", row, low), b.emit("le", row, high))
    # Only numbers inside are cast: of others the cast is not defined.
    place = b.to(b.emit("where", inside, share, b.number(-1, b.dtype(row))), i64)
    return b.emit("minimum", place, b.number(bins - 1, i64))
