"""Sums of rows by index on a GPU: the indices are put in order once, and each result adds up its own rows.

    y = x.index_put((i,), u, accumulate=True)     %keys, %order = graph.opaque "aten::sort.stable" %i
                                             →    %starts = graph.searchsorted %keys, 0 … V
                                                  %y = graph.add %x, (graph.sum_segments %u, %order, %keys, %starts)

Nothing is added in memory, so that the same bits come out every time. Whatever is summed by the same indices shares the
order: equal calls are made once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.encoding import TensorArgument
from weft.frontends.torch.importer.opaque import make_opaque
from weft.ir.attributes import to_attribute
from weft.ir.expr import product
from weft.ir.types import DType, Tensor, f32, f64, i16, i32, i64
from weft.passes.simplify.constant_values import number_of
from weft.tile.dialect import NumberOp

LEAST_ELEMENTS = 1 << 14
"""Of all updates, from which on putting their indices in order is worth its launches."""
_LEAST_ROW = 8
_MOST = NumberOp.MOST
"""Beyond it a kernel does not count rows."""
_EMPTY = 4
"""Results for each update beyond which nearly all programs would find nothing to add."""
_SORT: Any = torch.ops.aten.sort.stable


def sums_rows(shape: Sequence[Any], updates: Sequence[Any], dtype: DType) -> bool:
    """Whether rows that are added to a tensor of a shape are such sums; `updates` are all of them, row by row."""
    sizes = (*shape, *updates)
    if not dtype.is_float or len(shape) < 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    row, elements = math.prod(shape[1:]), math.prod(updates)
    count = elements // row
    many = row >= _LEAST_ROW and elements >= LEAST_ELEMENTS and count * _EMPTY >= shape[0]
    return many and max(shape[0], count) < _MOST


def along_rows(index: torch.Tensor, dim: int, x: torch.Tensor, updates: torch.Tensor) -> bool:
    """Whether an index of a scatter says the same of all elements of a row, and of all rows that are given."""
    sizes = (*index.shape, *x.shape, *updates.shape)
    if index.dim() < 2 or dim % index.dim() or any(isinstance(n, torch.SymInt) for n in sizes):
        return False
    rows = index.shape == updates.shape and index.shape[1:] == x.shape[1:]
    return rows and not any(step for step, size in zip(index.stride()[1:], index.shape[1:], strict=True) if size > 1)


def summed_rows(b: ImportBuilder, x: SSAValue, place: SSAValue, updates: SSAValue) -> SSAValue | None:
    """`x` with rows added at places in its first dimension: None where that is not worth an order of the places."""
    shape, dtype = b.shape(x), b.dtype(x)
    taken = b.capabilities.library_first and b.capabilities.thread_blocks and not b.strict
    if not taken or not sums_rows(shape, b.shape(updates), dtype):
        return None
    count, row = product(b.shape(place)), product(shape[1:])
    keys, order, starts = _in_order(b, b.view(place, (count,)), int(shape[0]))  # type: ignore[arg-type]
    is_new = number_of(x) == 0
    wide = f64 if dtype == f64 else f32
    rows = b.view(updates, (count, row))
    total = b.emit("sum_segments", rows if is_new else b.to(rows, wide), order, keys, starts)
    total = b.view(total, shape)
    return total if is_new else b.to(b.emit("add", b.to(x, wide), total), dtype)


def _in_order(b: ImportBuilder, place: SSAValue, size: int) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Places in order, where each stood, and where each of a dimension's begin.

    Those that are counted from the end are read so. Those out of range stay so: they are nobody's. Narrow ones are
    sorted in less time.
    """
    key = i16 if size < 1 << 15 else i32
    wide = b.to(place, i64)
    wrapped = b.emit("where", b.emit("lt", wide, b.number(0, i64)), b.emit("add", wide, b.number(size, i64)), wide)
    bounded = b.emit("minimum", b.emit("maximum", wrapped, b.number(-1, i64)), b.number(size, i64))
    (count,) = b.shape(place)
    found = [Tensor(key, (count,)), Tensor(i64, (count,))]
    arguments = {"stable": True, "dim": 0, "descending": False}
    sort = make_opaque(_SORT, (TensorArgument(b.to(bounded, key)),), arguments, found, {}, b.location)
    sort.attributes["weft.claim"] = to_attribute("library")
    b.insert(sort)
    keys, order = sort.results
    firsts = b.to(b.iota_of(size + 1), key)
    return keys, order, b.emit("searchsorted", keys, firsts, right=False)
