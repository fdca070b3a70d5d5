"""Sorting and selection by rank."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.combining import inverse_of, is_order
from weft.frontends.torch.aten.index import at_least_1d
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.builder import ImportBuilder, normal_dim
from weft.ir.expr import Size, product
from weft.ir.types import i64

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


@aten("histc")
def histc(b: ImportBuilder, x: SSAValue, bins: int = 100, min: float = 0, max: float = 0) -> SSAValue:
    """How often each integer of a range occurs."""
    least = int(min)
    # An empty range stands for that of the data.
    if not b.dtype(x).is_integer or min == max or (least, least + bins - 1) != (min, max):
        raise UnsupportedError("a histogram of anything but single integers")
    numbers = b.emit("iota", shape=(1, bins), dim=1, dtype=i64, start=least, step=1)
    row = b.to(b.view(x, (product(b.shape(x)), 1)), i64)
    return b.emit("sum", b.to(b.emit("eq", row, numbers), b.result.dtype), dims=(0,), keep=False)
