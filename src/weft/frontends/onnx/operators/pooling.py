"""Pooling: ONNX's words for windows and their padding, and the pools over them."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import i64
from weft.ops import composites
from weft.ops.composites import narrowed, widened


@dataclass(frozen=True)
class Windows:
    """Windows over spatial dimensions: `padding` before and after, and how far windows reach beyond it at the end."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    beyond: tuple[int, ...]

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        return tuple((low, high + more) for (low, high), more in zip(self.padding, self.beyond, strict=True))


def windows(c: Call, sizes: tuple[int, ...], window: tuple[int, ...]) -> Windows:
    """The windows that a node's attributes describe."""
    rank = len(sizes)
    strides, dilation = c.ints("strides", (1,) * rank), c.ints("dilations", (1,) * rank)
    if not len(window) == len(strides) == len(dilation) == rank or min((*window, *strides, *dilation), default=1) < 1:
        raise ShapeError(f"{c.node}: kernel {window}, strides {strides}, dilations {dilation}; expected {rank} of each")
    spans = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    auto = c.string("auto_pad", "NOTSET")
    padding: list[tuple[int, int]] = []
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        for size, span, step in zip(sizes, spans, strides, strict=True):
            total = max((math.ceil(size / step) - 1) * step + span - size, 0)
            less, more = total // 2, total - total // 2
            padding.append((less, more) if auto == "SAME_UPPER" else (more, less))
    elif auto in ("NOTSET", "VALID", ""):
        pads = c.ints("pads", (0,) * 2 * rank) if auto != "VALID" else (0,) * 2 * rank
        if len(pads) != 2 * rank:
            raise ShapeError(f"{c.node}: attribute 'pads' is {list(pads)}, expected {2 * rank} numbers")
        padding = [(pads[n], pads[n + rank]) for n in range(rank)]
    else:
        raise ModelError(f"{c.node}: attribute 'auto_pad' is {auto!r}, expected NOTSET, VALID or SAME_…")
    beyond: list[int] = []
    for size, span, step, (low, high) in zip(sizes, spans, strides, padding, strict=True):
        room = size + low + high - span
        if room < 0 and not c.flag("ceil_mode"):
            raise ShapeError(f"{c.node}: windows of {span} do not fit into {size} elements with padding {low}, {high}")
        count = math.ceil(room / step) + 1 if c.flag("ceil_mode") else room // step + 1
        if c.flag("ceil_mode") and (count - 1) * step >= size + low:  # the last window begins behind the elements
            count -= 1
        beyond.append(max((count - 1) * step - room, 0))
    return Windows(window, strides, dilation, tuple(padding), tuple(beyond))


def _pooled(c: Call) -> Windows:
    return windows(c, c.shape(0)[2:], c.ints("kernel_shape"))


@onnx_op("MaxPool")
def max_pool(c: Call) -> Any:
    x, shape, w = c.x(0), c.shape(0), _pooled(c)
    params = {"window": w.window, "strides": w.strides, "padding": w.reach, "dilation": w.dilation}
    made = c.b.max_pool(x, **params)
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return made
    places = c.b.max_pool_indices(x, **params)
    places = c.b.cast(places, dtype=i64) if c.b.tensor(places).dtype != i64 else places
    spatial = shape[2:]
    if c.int("storage_order", 0):
        rest, column = places, c.b.full_like(places, 0)
        for axis in reversed(range(len(spatial))):
            size = c.b.full_like(places, spatial[axis])
            before = c.b.full_like(places, math.prod(spatial[:axis]))
            column = c.b.add(column, c.b.mul(c.b.remainder(rest, size), before))
            rest = c.b.floordiv(rest, size)
        places = column
    planes = c.b.iota(shape=(shape[0] * shape[1],), dim=0, dtype=i64, step=math.prod(spatial))
    planes = c.b.reshape(planes, shape=(shape[0], shape[1], *(1 for _ in spatial)))
    return made, c.b.add(places, planes)


@onnx_op("AveragePool")
def average_pool(c: Call) -> Any:
    x, w = c.x(0), _pooled(c)
    wide = widened(c.b, x)
    total = c.b.sum_pool(wide, window=w.window, strides=w.strides, padding=w.reach, dilation=w.dilation)
    dtype = c.b.tensor(total).dtype
    included = c.flag("count_include_pad")
    if not any(w.beyond) and (included or not any(any(pair) for pair in w.padding)):
        count = c.b.full(value=math.prod(w.window), shape=(), dtype=dtype)
    else:
        sizes, reach = c.shape(0)[2:], w.reach
        if included:
            sizes = tuple(low + size + high for size, (low, high) in zip(sizes, w.padding, strict=True))
            reach = tuple((0, more) for more in w.beyond)
        ones = c.b.full(value=1, shape=(1, 1, *sizes), dtype=dtype)
        count = c.b.sum_pool(ones, window=w.window, strides=w.strides, padding=reach, dilation=w.dilation)
    return narrowed(c.b, c.b.div(total, count), c.b.tensor(x).dtype)


@onnx_op("LpPool")
def lp_pool(c: Call) -> Any:
    w = _pooled(c)

    def pool(value: SSAValue) -> SSAValue:
        return c.b.sum_pool(value, window=w.window, strides=w.strides, padding=w.reach, dilation=w.dilation)

    return _norm(c, float(c.int("p", 2)) if c.version > 1 else c.float("p", 2.0), pool)


def _norm(c: Call, p: float, total: Any) -> SSAValue:
    """The p-norm, where `total` sums up."""
    x = c.x(0)
    wide = widened(c.b, c.b.abs(x))
    if p == 1:
        made = total(wide)
    elif p == 2:
        made = c.b.sqrt(total(c.b.mul(wide, wide)))
    else:
        powers = total(c.b.pow(wide, c.b.full_like(wide, p)))
        made = c.b.pow(powers, c.b.full_like(powers, 1 / p))
    return narrowed(c.b, made, c.b.tensor(x).dtype)


@onnx_op("GlobalAveragePool")
def global_average_pool(c: Call) -> Any:
    return composites.mean(c.b, c.x(0), tuple(range(2, c.rank(0))), keep=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(c: Call) -> Any:
    return c.b.max(c.x(0), dims=tuple(range(2, c.rank(0))), keep=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(c: Call) -> Any:
    dims = tuple(range(2, c.rank(0)))
    p = float(c.int("p", 2)) if c.version > 1 else c.float("p", 2.0)
    return _norm(c, p, lambda value: c.b.sum(value, dims=dims, keep=True))


@onnx_op("LpNormalization")
def lp_normalization(c: Call) -> Any:
    x, axis, p = c.x(0), c.axis(c.int("axis", -1), c.rank(0)), c.int("p", 2)
    size = c.b.abs(x) if p == 1 else c.b.mul(x, x)
    total = c.b.sum(size, dims=(axis,), keep=True)
    total = total if p == 1 else c.b.sqrt(total)
    zero = c.b.full_like(total, 0)
    quotient = c.b.div(x, c.b.where(c.b.eq(total, zero), c.b.full_like(total, 1), total))
    return c.b.where(c.b.eq(total, zero), c.b.full_like(x, 0), quotient)
