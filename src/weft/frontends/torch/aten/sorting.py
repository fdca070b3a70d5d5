"""Sorting and selection by rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.combining import inverse_of, is_order
from weft.frontends.torch.aten.index import at_least_1d
from weft.frontends.torch.aten.reduction import refuse_truths
from weft.frontends.torch.aten.selection import LEAST_SELECTED, element_of_rank
from weft.frontends.torch.aten.shape import flat
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.ir.expr import Size, floordiv, product
from weft.ir.types import i32, i64

Pair = tuple[SSAValue, SSAValue]


def sorted_pair(b: ImportBuilder, x: SSAValue, dim: int, descending: bool) -> Pair:
    """The elements in order along a dimension, and where they were."""
    shape = b.shape(x)
    if len(shape) == 1 and not descending and is_order(x):
        return b.iota_of(shape[0]), inverse_of(b, x)
    row = at_least_1d(b, x)
    values, places = b.emit("sort", row, dim=normal_dim(dim, b.rank(row)), descending=descending, stable=True)
    return b.view(values, shape), b.view(places, shape)


@aten("sort")
def sort(b: ImportBuilder, x: SSAValue, dim: int = -1, descending: bool = False) -> Pair:
    return sorted_pair(b, x, dim, descending)


@aten("sort.stable")
def sort_stable(b: ImportBuilder, x: SSAValue, **options: Any) -> Pair:
    return sorted_pair(b, x, options.get("dim", -1), options.get("descending", False))


@aten("topk")
def topk(b: ImportBuilder, x: SSAValue, k: Size, dim: int = -1, largest: bool = True, ordered: bool = True) -> Pair:
    refuse_truths(b, x)
    result = b.result
    row = at_least_1d(b, x)
    values, places = b.emit("topk", row, k=k, dim=normal_dim(dim, b.rank(row)), largest=largest, sorted=ordered)
    return b.view(values, result.shape), b.view(places, result.shape)


@aten("cummax")
def cummax(b: ImportBuilder, x: SSAValue, dim: int) -> Pair:
    return _running(b, "cummax", x, dim)


@aten("cummin")
def cummin(b: ImportBuilder, x: SSAValue, dim: int) -> Pair:
    return _running(b, "cummin", x, dim)


def _running(b: ImportBuilder, name: str, x: SSAValue, dim: int) -> Pair:
    row = at_least_1d(b, x)
    values, places = b.emit(name, row, dim=normal_dim(dim, b.rank(row)))
    return b.view(values, b.shape(x)), b.view(places, b.shape(x))


@aten("kthvalue")
def kthvalue(b: ImportBuilder, x: SSAValue, k: Size, dim: int = -1, keepdim: bool = False) -> Pair:
    refuse_truths(b, x)
    row = at_least_1d(b, x)
    return _shaped(b, _of_rank(b, row, k - 1, normal_dim(dim, b.rank(row))))


@aten("median.dim")
def median_along(b: ImportBuilder, x: SSAValue, dim: int, keepdim: bool = False) -> Pair:
    refuse_truths(b, x)
    row = at_least_1d(b, x)
    return _shaped(b, _median(b, row, normal_dim(dim, b.rank(row))))


@aten("nanmedian.dim")
def nanmedian_along(b: ImportBuilder, x: SSAValue, dim: int, keepdim: bool = False) -> Pair:
    refuse_truths(b, x)
    row = at_least_1d(b, x)
    return _shaped(b, _nanmedian(b, row, normal_dim(dim, b.rank(row))))


@aten("median")
def median(b: ImportBuilder, x: SSAValue) -> SSAValue:
    return _of_all(b, x, _median)


@aten("nanmedian")
def nanmedian(b: ImportBuilder, x: SSAValue) -> SSAValue:
    return _of_all(b, x, _nanmedian)


def _of_all(b: ImportBuilder, x: SSAValue, along: Callable[[ImportBuilder, SSAValue, int], Pair]) -> SSAValue:
    """The median of all elements; where there are none, NaN."""
    refuse_truths(b, x)
    if product(b.shape(x)) == 0:
        if not b.dtype(x).is_float:
            raise UnsupportedError("the median of no integers, for which torch has a number of its own")
        return b.number(math.nan, b.dtype(x))
    return b.view(along(b, flat(b, x), 0)[0], ())


def _is_selected(b: ImportBuilder, x: SSAValue, dim: int) -> bool:
    """Whether elements of some rank are selected, and lines not sorted; a GPU's are sorted by torch."""
    size = b.shape(x)[dim]
    return b.meta_of(0).device.type == "cpu" and (not isinstance(size, int) or size >= LEAST_SELECTED)


def _of_rank(b: ImportBuilder, x: SSAValue, rank: Size, dim: int) -> Pair:
    """The element along a dimension that so many are below, and where it stands."""
    if _is_selected(b, x, dim):
        return element_of_rank(b, x, b.number(rank, i64), dim)
    values, places = b.emit("topk", x, k=rank + 1, dim=dim, largest=False, sorted=True)
    starts = tuple(rank if d == dim else 0 for d in range(b.rank(x)))
    shape = tuple(1 if d == dim else size for d, size in enumerate(b.shape(x)))
    first, second = (
        b.emit("slice", each, starts=starts, shape=shape, steps=(1,) * len(shape)) for each in (values, places)
    )
    return first, second


def _median(b: ImportBuilder, x: SSAValue, dim: int) -> Pair:
    """The lower of two medians; a NaN is the median of what has one."""
    value, place = _of_rank(b, x, floordiv(b.shape(x)[dim] - 1, 2), dim)
    if not b.dtype(x).is_float:
        return value, place
    absent = b.emit("isnan", x)
    spoiled = b.emit("any", absent, dims=(dim,), keep=True)
    first = b.emit("argmax", b.to(absent, i32), dims=(dim,), keep=True)
    return b.emit("where", spoiled, b.number(math.nan, b.dtype(x)), value), b.emit("where", spoiled, first, place)


def _nanmedian(b: ImportBuilder, x: SSAValue, dim: int) -> Pair:
    """The lower median of what is no NaN: sorted, the NaNs come last."""
    if not b.dtype(x).is_float:
        return _median(b, x, dim)
    there = b.to(b.emit("logical_not", b.emit("isnan", x)), i64)
    count = b.emit("sum", there, dims=(dim,), keep=True)
    rank = b.emit("floordiv", b.emit("sub", count, b.number(1, i64)), b.number(2, i64))
    rank = b.emit("maximum", rank, b.number(0, i64))
    if _is_selected(b, x, dim):
        return element_of_rank(b, x, rank, dim)
    values, places = b.emit("sort", x, dim=dim, descending=False, stable=True)
    return b.emit("gather", values, rank, dim=dim), b.emit("gather", places, rank, dim=dim)


@aten("mode")
def mode(b: ImportBuilder, x: SSAValue, dim: int = -1, keepdim: bool = False) -> Pair:
    """The least of the most frequent elements, and where it stands last."""
    row = at_least_1d(b, x)
    dim, shape = normal_dim(dim, b.rank(row)), b.shape(row)
    values, places = b.emit("sort", row, dim=dim, descending=False, stable=True)
    number = b.emit("iota", shape=shape, dim=dim, dtype=i64)
    starts = tuple(1 if d == dim else 0 for d in range(len(shape)))
    least = tuple(shape[dim] - 1 if d == dim else size for d, size in enumerate(shape))
    ends = b.emit("slice", values, starts=starts, shape=least, steps=(1,) * len(shape))
    before = b.emit("slice", values, starts=(0,) * len(shape), shape=least, steps=(1,) * len(shape))
    # Equal elements are neighbours: each counts those before it from where their first one stands.
    changes = b.emit("pad", b.emit("ne", ends, before), value=True, low=starts, high=(0,) * len(shape))
    start, _ = b.emit("cummax", b.emit("where", changes, number, b.number(0, i64)), dim=dim)
    best = b.emit("argmax", b.emit("sub", number, start), dims=(dim,), keep=True)
    return _shaped(b, (b.emit("gather", values, best, dim=dim), b.emit("gather", places, best, dim=dim)))


def _shaped(b: ImportBuilder, pair: Pair) -> Pair:
    """The pair without, or with, the dimension along which it was found."""
    return b.view(pair[0], b.result.shape), b.view(pair[1], b.result.shape)
