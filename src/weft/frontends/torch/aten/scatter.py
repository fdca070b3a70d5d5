"""Scatter: copies with elements replaced or combined at computed indices of one dimension."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.index import at_least_1d
from weft.frontends.torch.aten.row_sums import along_rows, summed_rows
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.dtypes import Operand
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.frontends.torch.importer.checks import check_places
from weft.ir.expr import Size
from weft.ir.types import DType
from weft.ops.reduce import greatest, least

_KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def scattered(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: Operand, kind: str) -> SSAValue:
    """`x` with the source, or a number, combined into it."""
    dtype = b.dtype(x)
    places = at_least_1d(b, places)
    if isinstance(source, SSAValue):
        updates = at_least_1d(b, b.to(source, dtype))
    else:
        updates = b.expand(b.number(source, dtype), b.shape(places))
    row = at_least_1d(b, x)
    dim = normal_dim(dim, b.rank(row))
    check_places(b, places, dim, b.shape(row)[dim])
    if kind == "add" and _is_along_rows(b, source):
        first = b.view(b.emit("slice", places, **_first_column(b.shape(places))), b.shape(places)[:1])
        if (added := summed_rows(b, row, first, updates)) is not None:
            return added
    result = b.emit("scatter", row, places, updates, dim=dim, kind=kind)
    return b.view(result, b.shape(x))


def _is_along_rows(b: ImportBuilder, source: Operand) -> bool:
    """Whether the call's index is a column that is repeated for each element of a row."""
    if not isinstance(source, SSAValue) or len(b.node.args) < 4:
        return False
    metas = [b.meta_of(position) for position in (2, 0, 3)]
    return along_rows(metas[0], b.node.args[1], *metas[1:])


def _first_column(shape: tuple[Size, ...]) -> dict[str, tuple[Size, ...]]:
    return {"starts": (0,) * len(shape), "shape": (shape[0], *(1 for _ in shape[1:])), "steps": (1,) * len(shape)}


@aten("scatter.src", "scatter.value")
def scatter(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: Operand) -> SSAValue:
    return scattered(b, x, dim, places, source, "assign")


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_combine(
    b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: Operand, *, reduce: str
) -> SSAValue:
    return scattered(b, x, dim, places, source, _KINDS[reduce])


@aten("scatter_add")
def scatter_add(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: SSAValue) -> SSAValue:
    return scattered(b, x, dim, places, source, "add")


def _neutral(kind: str, dtype: DType) -> float | int:
    return {"add": 0, "mul": 1, "max": least(dtype), "min": greatest(dtype)}[kind]


@aten("scatter_reduce.two")
def scatter_reduce(
    b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: SSAValue, reduce: str, **options: Any
) -> SSAValue:
    include_self: bool = options.get("include_self", True)
    dtype = b.dtype(x)
    kind = "add" if reduce == "mean" else _KINDS[reduce]
    start = x if include_self else scattered(b, x, dim, places, _neutral(kind, dtype), "assign")
    combined = scattered(b, start, dim, places, source, kind)
    if reduce != "mean":
        return combined
    ones = b.expand(b.number(1, dtype), b.shape(x))
    if not include_self:
        ones = scattered(b, ones, dim, places, 0, "assign")
    count = scattered(b, ones, dim, places, 1, "add")
    count = b.emit("maximum", count, b.number(1, dtype))
    return b.emit("div" if dtype.is_float else "floordiv", combined, count)
