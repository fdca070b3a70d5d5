"""Reductions and scans: torch's optional dimensions, result types and index results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim, normal_dims
from weft.ir.types import boolean, u8
from weft.ops import composites

Dims = Sequence[int] | int | None


@aten("sum", "sum.dim_IntList")
def sum_(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    keep = options.get("keepdim", keep)
    return b.emit("sum", b.to(x, b.result.dtype), dims=normal_dims(dims, b.rank(x)), keep=keep)


@aten("prod", "prod.dim_int")
def prod(b: ImportBuilder, x: SSAValue, dim: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    keep = options.get("keepdim", keep)
    return b.emit("prod", b.to(x, b.result.dtype), dims=normal_dims(dim, b.rank(x)), keep=keep)


@aten("mean", "mean.dim")
def mean(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    keep = options.get("keepdim", keep)
    return composites.mean(b, b.to(x, b.result.dtype), normal_dims(dims, b.rank(x)), keep)


@aten("amax")
def amax(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    return extremum(b, "max", x, dims, options.get("keepdim", keep))


@aten("amin")
def amin(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    return extremum(b, "min", x, dims, options.get("keepdim", keep))


def extremum(b: ImportBuilder, name: str, x: SSAValue, dims: Dims, keep: bool) -> SSAValue:
    """The greatest or least elements; of booleans, any or all."""
    if any(b.shape(x)[d] == 0 for d in normal_dims(dims, b.rank(x))):
        raise UnsupportedError("nothing has no extremum")  # torch raises an error of its own
    if b.dtype(x) == boolean:
        name = {"max": "any", "min": "all"}[name]
    return b.emit(name, x, dims=normal_dims(dims, b.rank(x)), keep=keep)


@aten("max")
def max_all(b: ImportBuilder, x: SSAValue) -> SSAValue:
    return extremum(b, "max", x, None, False)


@aten("min")
def min_all(b: ImportBuilder, x: SSAValue) -> SSAValue:
    return extremum(b, "min", x, None, False)


@aten("max.dim")
def max_dim(
    b: ImportBuilder, x: SSAValue, dim: int, keep: bool = False, **options: Any
) -> tuple[SSAValue, SSAValue | None]:
    return _with_place(b, "max", x, dim, options.get("keepdim", keep))


@aten("min.dim")
def min_dim(
    b: ImportBuilder, x: SSAValue, dim: int, keep: bool = False, **options: Any
) -> tuple[SSAValue, SSAValue | None]:
    return _with_place(b, "min", x, dim, options.get("keepdim", keep))


def _with_place(b: ImportBuilder, name: str, x: SSAValue, dim: int, keep: bool) -> tuple[SSAValue, SSAValue | None]:
    dims = normal_dims(dim, b.rank(x))
    value = extremum(b, name, x, dim, keep)
    return value, b.emit(f"arg{name}", _ordered(b, x), dims=dims, keep=keep)


def refuse_truths(b: ImportBuilder, x: SSAValue) -> None:
    """Leave to torch what it has no kernel for; it says so."""
    if b.dtype(x) == boolean:
        raise UnsupportedError("an order of booleans, which torch refuses")


def _ordered(b: ImportBuilder, x: SSAValue) -> SSAValue:
    """Booleans as numbers, which have an order."""
    return b.to(x, u8) if b.dtype(x) == boolean else x


@aten("argmax")
def argmax(b: ImportBuilder, x: SSAValue, dim: int | None = None, keep: bool = False, **options: Any) -> SSAValue:
    refuse_truths(b, x)
    return b.emit("argmax", x, dims=normal_dims(dim, b.rank(x)), keep=options.get("keepdim", keep))


@aten("argmin")
def argmin(b: ImportBuilder, x: SSAValue, dim: int | None = None, keep: bool = False, **options: Any) -> SSAValue:
    refuse_truths(b, x)
    return b.emit("argmin", x, dims=normal_dims(dim, b.rank(x)), keep=options.get("keepdim", keep))


@aten("any", "any.dim", "any.dims")
def any_(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    return _truth(b, "any", x, dims, options.get("keepdim", keep))


@aten("all", "all.dim", "all.dims")
def all_(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    return _truth(b, "all", x, dims, options.get("keepdim", keep))


def _truth(b: ImportBuilder, name: str, x: SSAValue, dims: Dims, keep: bool) -> SSAValue:
    # For these, an empty list of dimensions means none, not all.
    over = () if isinstance(dims, Sequence) and not dims else normal_dims(dims, b.rank(x))
    return b.emit(name, b.to(x, boolean), dims=over, keep=keep)


@aten("var.correction")
def var(b: ImportBuilder, x: SSAValue, dims: Dims = None, **options: Any) -> SSAValue:
    return _var_mean(b, x, dims, options)[0]


@aten("std.correction")
def std(b: ImportBuilder, x: SSAValue, dims: Dims = None, **options: Any) -> SSAValue:
    return composites.std(b, x, normal_dims(dims, b.rank(x)), bool(options.get("keepdim")), _correction(options))


@aten("var_mean.correction")
def var_mean(b: ImportBuilder, x: SSAValue, dims: Dims = None, **options: Any) -> tuple[SSAValue, SSAValue]:
    return _var_mean(b, x, dims, options)


def _var_mean(b: ImportBuilder, x: SSAValue, dims: Dims, options: dict[str, Any]) -> tuple[SSAValue, SSAValue]:
    keep = bool(options.get("keepdim"))
    return composites.var_mean(b, x, normal_dims(dims, b.rank(x)), keep, _correction(options))


def _correction(options: dict[str, Any]) -> float:
    correction = options.get("correction")
    return 1.0 if correction is None else float(correction)


@aten("linalg_vector_norm")
def vector_norm(
    b: ImportBuilder, x: SSAValue, order: float = 2, dims: Dims = None, keep: bool = False, **options: Any
) -> SSAValue:
    over = normal_dims(dims, b.rank(x))
    wide = b.wide(b.to(x, b.result.dtype))
    dtype = b.dtype(wide)
    if order == 2:  # not by magnitudes, whose derivative at 0 is none: that of their squares is one of the function
        return b.emit("sqrt", b.emit("sum", b.emit("mul", wide, wide), dims=over, keep=keep))
    size = b.emit("abs", wide)
    if order in (math.inf, -math.inf):
        return b.emit("max" if order > 0 else "min", size, dims=over, keep=keep)
    if order == 0:
        return b.emit("sum", b.to(b.emit("ne", size, b.number(0, dtype)), dtype), dims=over, keep=keep)
    if order == 1:
        return b.emit("sum", size, dims=over, keep=keep)
    power = b.emit("sum", b.emit("pow", size, b.number(float(order), dtype)), dims=over, keep=keep)
    return b.emit("pow", power, b.number(1.0 / order, dtype))


@aten("logsumexp")
def logsumexp(b: ImportBuilder, x: SSAValue, dims: Dims = None, keep: bool = False, **options: Any) -> SSAValue:
    x = b.to(x, b.result.dtype)
    return composites.logsumexp(b, x, normal_dims(dims, b.rank(x)), options.get("keepdim", keep))


@aten("cumsum")
def cumsum(b: ImportBuilder, x: SSAValue, dim: int, **options: Any) -> SSAValue:
    return scan(b, "cumsum", x, dim)


@aten("cumprod")
def cumprod(b: ImportBuilder, x: SSAValue, dim: int, **options: Any) -> SSAValue:
    return scan(b, "cumprod", x, dim)


def scan(b: ImportBuilder, name: str, x: SSAValue, dim: int) -> SSAValue:
    """A running combination along a dimension, in the result's type."""
    x = b.to(x, b.result.dtype)
    return b.emit(name, x, dim=normal_dim(dim, b.rank(x))) if b.rank(x) else x


@aten("logcumsumexp")
def logcumsumexp(b: ImportBuilder, x: SSAValue, dim: int) -> SSAValue:
    return scan(b, "logcumsumexp", x, dim)
