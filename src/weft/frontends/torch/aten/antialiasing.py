"""Resizing of images without aliasing: each result is a mean over all that it stands for, weighted by a filter."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, product
from weft.ir.types import DType, i64

_A = -0.5
"""How far the cubic filter goes below zero."""


@aten("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def resized(
    b: ImportBuilder,
    x: SSAValue,
    shape: Sequence[Size],
    align_corners: bool,
    scale_h: float | None = None,
    scale_w: float | None = None,
) -> SSAValue:
    result = x
    for dim, count, scale in zip((-1, -2), reversed(shape), (scale_w, scale_h), strict=True):
        weights = _weights(b, b.shape(x)[dim], count, align_corners, scale)
        result = _multiplied(b, result, b.transpose(weights, (1, 0)), dim)
    return result


@aten("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward")
def resized_backward(
    b: ImportBuilder,
    grad: SSAValue,
    shape: Sequence[Size],
    sizes: Sequence[Size],
    align_corners: bool,
    scale_h: float | None = None,
    scale_w: float | None = None,
) -> SSAValue:
    """Every result hands its gradient to all that it is a mean of, by the same weights."""
    result = grad
    for dim, count, scale in zip((-1, -2), reversed(shape), (scale_w, scale_h), strict=True):
        result = _multiplied(b, result, _weights(b, sizes[dim], count, align_corners, scale), dim)
    return result


def _multiplied(b: ImportBuilder, x: SSAValue, matrix: SSAValue, dim: int) -> SSAValue:
    """Each line along the last or last but one dimension times a matrix."""
    rank = b.rank(x)
    order = (*range(rank - 2), rank - 1, rank - 2) if dim == -2 else tuple(range(rank))
    x = b.transpose(x, order)
    *lead, size = b.shape(x)
    rows = b.view(b.to(b.wide(x), b.dtype(matrix)), (product(lead), size))
    return b.transpose(b.view(b.emit("dot", rows, matrix), (*lead, b.shape(matrix)[1])), order)


def _weights(b: ImportBuilder, size: Size, count: Size, align_corners: bool, scale: float | None) -> SSAValue:
    """What each of `size` elements counts for in each of `count` results; it depends on no data."""
    dtype = b.dtype(b.wide(b.zeros(b.result)))
    if not isinstance(size, int) or not isinstance(count, int) or not dtype.is_float:
        raise UnsupportedError("resizing without aliasing, of integers or of symbolic sizes")
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else size / count
    cubic = "bicubic" in str(b.node.target)
    wide = max(step, 1.0)
    reach = (2.0 if cubic else 1.0) * wide

    def scaled(value: SSAValue, factor: float, shift: float) -> SSAValue:
        return b.emit("add", b.emit("mul", value, b.number(factor, dtype)), b.number(shift, dtype))

    center = b.view(scaled(b.iota_of(count, dtype), step, 0.5 * step), (count, 1))
    places = b.view(b.iota_of(size), (1, size))
    half = b.number(0.5, dtype)
    first = b.to(b.emit("add", b.emit("sub", center, b.number(reach, dtype)), half), i64)
    last = b.to(b.emit("add", b.emit("add", center, b.number(reach, dtype)), half), i64)
    inside = b.emit("logical_and", b.emit("ge", places, first), b.emit("lt", places, last))
    distance = b.emit("add", b.emit("sub", b.to(places, dtype), center), half)
    value = (_cubic if cubic else _linear)(b, b.emit("abs", b.emit("div", distance, b.number(wide, dtype))), dtype)
    value = b.emit("where", inside, value, b.number(0, dtype))
    return b.emit("div", value, b.emit("sum", value, dims=(1,), keep=True))


def _linear(b: ImportBuilder, x: SSAValue, dtype: DType) -> SSAValue:
    return b.emit("maximum", b.emit("sub", b.number(1, dtype), x), b.number(0, dtype))


def _cubic(b: ImportBuilder, x: SSAValue, dtype: DType) -> SSAValue:
    def polynomial(*factors: float) -> SSAValue:
        value = b.number(factors[0], dtype)
        for factor in factors[1:]:
            value = b.emit("add", b.emit("mul", value, x), b.number(factor, dtype))
        return value

    near, far = polynomial(_A + 2, -(_A + 3), 0, 1), polynomial(_A, -5 * _A, 8 * _A, -4 * _A)
    beyond = b.emit("where", b.emit("lt", x, b.number(2, dtype)), far, b.number(0, dtype))
    return b.emit("where", b.emit("lt", x, b.number(1, dtype)), near, beyond)
