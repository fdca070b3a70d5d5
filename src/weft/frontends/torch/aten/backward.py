"""Gradients that torch keeps as operators of their own, beside those next to their operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.distance import row_pairs
from weft.frontends.torch.aten.shape import flat
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.types import boolean, i64


@aten("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(b: ImportBuilder, grad: SSAValue, x: SSAValue, padding: Sequence[int]) -> SSAValue:
    """Each element takes the gradients of the copies of it beyond the edges."""
    rank, spatial = b.rank(x), len(padding) // 2
    for d in range(spatial):
        dim = rank - 1 - d
        size, wide = b.shape(x)[dim], b.shape(grad)[dim]
        place = b.emit("sub", b.iota_of(wide), b.number(padding[2 * d], i64))
        place = b.emit("minimum", b.emit("maximum", place, b.number(0, i64)), b.number(size - 1, i64))
        shape = list(b.shape(grad))
        shape[dim] = size
        target = b.emit("full", value=0.0, shape=tuple(shape), dtype=b.dtype(grad))
        grad = b.emit("index_put", target, place, grad, dims=(dim,), position=dim, accumulate=True)
    return grad


@aten("masked_scatter_backward")
def masked_scatter_backward(b: ImportBuilder, grad: SSAValue, mask: SSAValue, shape: Sequence[int]) -> SSAValue:
    """The n-th element of the source takes the gradient at the n-th true element of the mask."""
    result = b.result
    row = flat(b, b.expand(b.to(mask, boolean), b.shape(grad)))
    gradient = flat(b, grad)
    count = b.emit("cumsum", b.to(row, i64), dim=0)
    total = 1
    for size in result.shape:
        total = total * size
    target = b.emit("full", value=0.0, shape=(total,), dtype=result.dtype)
    place = b.emit(
        "minimum", b.emit("maximum", b.emit("sub", count, b.number(1, i64)), b.number(0, i64)), b.number(total - 1, i64)
    )
    kept = b.emit("where", row, gradient, b.number(0, result.dtype))
    return b.view(b.emit("index_put", target, place, kept, dims=(0,), position=0, accumulate=True), result.shape)


@aten("_cdist_backward")
def cdist_backward(
    b: ImportBuilder, grad: SSAValue, x: SSAValue, y: SSAValue, p: float, distance: SSAValue
) -> SSAValue:
    batch = b.result.shape[:-2]
    x = b.expand(x, (*batch, *b.shape(x)[-2:]))
    y = b.expand(y, (*batch, *b.shape(y)[-2:]))
    rank = b.rank(x)
    difference = b.emit("sub", b.unsqueeze(x, rank - 1), b.unsqueeze(y, rank - 2))
    share = _norm_gradient(b, b.unsqueeze(grad, rank), difference, b.unsqueeze(distance, rank), p)
    return b.emit("sum", share, dims=(rank - 1,), keep=False)


@aten("_pdist_backward")
def pdist_backward(b: ImportBuilder, grad: SSAValue, x: SSAValue, p: float, distance: SSAValue) -> SSAValue:
    first, second = row_pairs(b, x, b.shape(distance)[0])
    difference = b.emit("sub", b.emit("take", x, first, dim=0), b.emit("take", x, second, dim=0))
    share = _norm_gradient(b, b.unsqueeze(grad, 1), difference, b.unsqueeze(distance, 1), p)
    target = {"dims": (0,), "position": 0, "accumulate": True}
    added = b.emit("index_put", b.zeros(b.result), first, share, **target)
    return b.emit("index_put", added, second, b.emit("neg", share), **target)


def _norm_gradient(b: ImportBuilder, grad: SSAValue, difference: SSAValue, distance: SSAValue, p: float) -> SSAValue:
    """The gradient of a p-norm: `grad · |d|^(p-1) · sign(d) / distance^(p-1)`, and 0 where the distance is 0."""
    dtype = b.dtype(difference)
    zero, sign, size = b.number(0, dtype), b.emit("sign", difference), b.emit("abs", difference)
    if p == 0:
        share = b.emit("mul", b.emit("mul", sign, zero), grad)
    elif p == 1:
        share = b.emit("mul", sign, grad)
    elif math.isinf(p):
        reached = b.to(b.emit("eq", size, distance), dtype)
        share = b.emit("mul", b.emit("mul", sign, reached), grad)
    else:
        power = size if p == 2 else b.emit("pow", size, b.number(p - 1, dtype))
        divisor = distance if p == 2 else b.emit("pow", distance, b.number(p - 1, dtype))
        share = b.emit("mul", b.emit("mul", sign, power), b.emit("div", grad, divisor))
        # Below 2 a difference of 0 has an infinite power; its share is 0 all the same.
        share = b.emit("where", b.emit("eq", size, zero), zero, share)
    return b.emit("where", b.emit("eq", distance, zero), zero, share)


@aten("_weight_norm_interface_backward")
def weight_norm_backward(
    b: ImportBuilder, grad: SSAValue, direction: SSAValue, length: SSAValue, norms: SSAValue, dim: int
) -> tuple[SSAValue, SSAValue]:
    """The gradients of `length · direction / norms`, the norms being those of the direction's slices along `dim`."""
    results = b.result.dtype, b.dtype(length)
    grad, direction, length, norms = map(b.wide, (grad, direction, length, norms))
    dtype = b.dtype(grad)
    norms, length = b.to(norms, dtype), b.to(length, dtype)
    others = tuple(d for d in range(b.rank(grad)) if d != dim)
    along = b.emit("sum", b.emit("mul", grad, direction), dims=others, keep=True)
    on_length = b.emit("div", along, norms)
    across = b.emit("mul", direction, b.emit("div", along, b.emit("mul", norms, norms)))
    on_direction = b.emit("mul", b.emit("div", length, norms), b.emit("sub", grad, across))
    return b.to(on_direction, results[0]), b.to(on_length, results[1])
