"""Copies of elements to other places: concatenation, slices, padding, triangles and ranges."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DataError, ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.shapes import checked_shape, on_host
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.values import Known
from weft.ir.types import boolean, i64


@onnx_op("Concat")
def concat(c: Call) -> Any:
    axis = c.axis(c.int("axis", 1 if c.version < 4 else None), c.rank(0))
    if on_host(c):
        return c.host(lambda *arrays: np.concatenate(arrays, axis))
    xs = c.xs()
    return xs[0] if len(xs) == 1 else c.b.concat(*xs, dim=axis)


@onnx_op("Split")
def split(c: Call) -> Any:
    axis = c.axis(c.int("axis", 0), c.rank(0))
    size, parts = c.shape(0)[axis], len(c.node.outputs)
    if c.version >= 13:
        sizes = c.known_ints(1) if c.has(1) else None
    else:
        sizes = c.ints("split") if c.given("split") else None
    if sizes is None:
        each = math.ceil(size / parts)
        sizes = [max(min(each, size - each * n), 0) for n in range(parts)]
    if sum(sizes) != size or any(each < 0 for each in sizes) or len(sizes) < parts:
        raise ShapeError(f"{c.node}: split is {list(sizes)}, expected {parts} sizes whose sum is {size}")
    return [pieces(c, c.x(0), axis, sum(sizes[:n]), each) for n, each in enumerate(sizes)]


def pieces(c: Call, x: SSAValue, axis: int, start: int, size: int) -> SSAValue:
    """`size` elements of a dimension, from `start` on."""
    shape = static(c.b.tensor(x))
    starts = tuple(start if dim == axis else 0 for dim in range(len(shape)))
    sizes = tuple(size if dim == axis else each for dim, each in enumerate(shape))
    return c.b.slice(x, starts=starts, shape=sizes, steps=(1,) * len(shape))


@onnx_op("Slice")
def slice_(c: Call) -> Any:
    sizes = c.shape(0)
    rank = len(sizes)
    if c.version < 10:
        starts, ends = c.ints("starts"), c.ints("ends")
        axes, steps = c.ints("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = c.known_ints(1), c.known_ints(2)
        axes = c.known_ints(3) if c.has(3) else tuple(range(len(starts)))
        steps = c.known_ints(4) if c.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ShapeError(f"{c.node}: starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    places = {c.axis(axis, rank, "axes"): slice(*each) for axis, *each in zip(axes, starts, ends, steps, strict=True)}
    chosen = [range(size)[places.get(dim, slice(None))] for dim, size in enumerate(sizes)]
    if on_host(c):
        return c.host(lambda array: array[tuple(places.get(dim, slice(None)) for dim in range(rank))], c.inputs[:1])
    shape = tuple(len(each) for each in chosen)
    if 0 in shape:
        return c.b.full(value=0, shape=shape, dtype=c.kernel_type(c.dtype(0)))
    x = c.x(0)
    by_sizes = any(isinstance(each, Known) and each.origin for each in c.inputs[1:])  # at other sizes it is a part
    if shape == sizes and all(each.step == 1 for each in chosen) and not by_sizes:
        return x
    return c.b.slice(x, starts=tuple(e.start for e in chosen), shape=shape, steps=tuple(e.step for e in chosen))


@onnx_op("Pad")
def pad(c: Call) -> Any:
    rank = c.rank(0)
    if c.version < 11:
        pads = c.ints("pads" if c.version >= 2 else "paddings")
        value: Any = c.float("value", 0.0)
    else:
        pads = c.known_ints(1)
        value = c.known_scalar(2) if c.has(2) else 0
    axes = c.axes(c.known_ints(3), rank) if c.has(3) else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{c.node}: pads are {list(pads)}, expected {2 * len(axes)} numbers")
    low, high = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        low[axis], high[axis] = pads[place], pads[place + len(axes)]
    return padded(c, c.x(0), low, high, c.string("mode", "constant"), value)


def padded(c: Call, x: SSAValue, low: Sequence[int], high: Sequence[int], mode: str, value: Any = 0) -> SSAValue:
    """Surrounded with elements; negative numbers take some off, first."""
    shape = static(c.b.tensor(x))
    cut = tuple(size + min(a, 0) + min(b, 0) for size, a, b in zip(shape, low, high, strict=True))
    if any(size < 0 for size in cut):
        raise ShapeError(f"{c.node}: pads {list(low)} and {list(high)} leave nothing of {list(shape)}")
    if cut != shape:
        x = c.b.slice(x, starts=tuple(max(-a, 0) for a in low), shape=cut, steps=(1,) * len(cut))
    low, high = tuple(max(a, 0) for a in low), tuple(max(b, 0) for b in high)
    checked_shape(c, [a + size + b for a, size, b in zip(low, cut, high, strict=True)])
    if not any(low) and not any(high):
        return x
    if mode == "constant":
        return c.b.pad(x, low=low, high=high, value=value)
    if mode not in ("edge", "reflect", "wrap"):
        raise ModelError(f"{c.node}: attribute 'mode' is {mode!r}, expected constant, edge, reflect or wrap")
    for axis, size in enumerate(cut):
        if low[axis] or high[axis]:
            places = np.pad(np.arange(size), (low[axis], high[axis]), mode=mode)  # pyright: ignore
            x = c.b.take(x, lifted(c, places.astype(np.int64)), dim=axis)
    return x


def lifted(c: Call, array: np.ndarray) -> SSAValue:
    """An array that is known at import as a value of the graph."""
    return c.scope.traced(Known(array), c.node)


@onnx_op("Range")
def range_(c: Call) -> Any:
    start, limit, delta = (c.known_scalar(place) for place in range(3))
    if delta == 0:
        raise DataError(f"{c.node}: the step is 0, expected another number")
    count = max(math.ceil((limit - start) / delta), 0)
    checked_shape(c, (count,))
    dtype = c.kernel_type(c.dtype(0))
    if not dtype.is_float or dtype.bits == 64:
        return c.b.iota(shape=(count,), dim=0, dtype=dtype, start=start, step=delta)
    return (
        (np.arange(count) * np.asarray(delta, np.float64) + start).astype(dtype.numpy)
        if count <= 1 << 20
        else (c.b.iota(shape=(count,), dim=0, dtype=dtype, start=start, step=delta))
    )


@onnx_op("EyeLike")
def eye_like(c: Call) -> Any:
    rows, cols = c.shape(0)
    dtype = c.kernel_type(c.numpy_type("dtype") if c.given("dtype") else c.dtype(0))
    row, col = (c.b.iota(shape=(rows, cols), dim=dim, dtype=i64) for dim in (0, 1))
    return c.b.cast(c.b.eq(c.b.add(row, c.b.full_like(row, c.int("k", 0))), col), dtype=dtype)


@onnx_op("Trilu")
def trilu(c: Call) -> Any:
    x, shape = c.x(0), c.shape(0)
    k = int(c.known_scalar(1)) if c.has(1) else 0
    if math.prod(shape) == 0:
        return x
    row, col = (c.b.iota(shape=shape[-2:], dim=dim, dtype=i64) for dim in (0, 1))
    edge = c.b.add(row, c.b.full_like(row, max(min(k, 1 << 40), -(1 << 40))))
    keep = c.b.ge(col, edge) if c.flag("upper", True) else c.b.le(col, edge)
    return c.b.where(keep, x, c.b.full_like(x, 0))


@onnx_op("ReverseSequence")
def reverse_sequence(c: Call) -> Any:
    x, shape = c.x(0), c.shape(0)
    batch, time = c.int("batch_axis", 1), c.int("time_axis", 0)
    place = c.b.iota(shape=shape, dim=time, dtype=i64)
    length = c.b.reshape(c.x(1), shape=tuple(size if dim == batch else 1 for dim, size in enumerate(shape)))
    length = c.b.cast(length, dtype=i64) if c.b.tensor(length).dtype != i64 else length
    mirrored = c.b.sub(c.b.sub(length, c.b.full_like(length, 1)), place)
    return c.b.gather(x, c.b.where(c.b.lt(place, length), mirrored, place), dim=time)


@onnx_op("CenterCropPad")
def center_crop_pad(c: Call) -> Any:
    sizes, x = c.shape(0), c.x(0)
    wanted = c.known_ints(1)
    axes = c.axes(c.ints("axes", tuple(range(len(sizes)))), len(sizes))
    low, high = [0] * len(sizes), [0] * len(sizes)
    for axis, size in zip(axes, wanted, strict=True):
        more = size - sizes[axis]
        low[axis] = -((-more) // 2) if more < 0 else more // 2
        high[axis] = more - low[axis]
    return padded(c, x, low, high, "constant", False if c.b.tensor(x).dtype == boolean else 0)
