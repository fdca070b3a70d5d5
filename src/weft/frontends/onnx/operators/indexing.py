"""Reading and writing elements at computed places."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.checks import check_places
from weft.frontends.onnx.operators.movement import lifted
from weft.frontends.onnx.operators.shapes import on_host
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import i64

_KINDS = {"none": "assign", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@onnx_op("Gather")
def gather(c: Call) -> Any:
    axis = c.axis(c.int("axis", 0), c.rank(0))
    if on_host(c):
        return c.host(lambda array, places: np.take(array, places, axis))
    check_places(c, 1, (c.shape(0)[axis],), (axis,))
    return c.b.take(c.x(0), c.x(1), dim=axis)


@onnx_op("GatherElements")
def gather_elements(c: Call) -> Any:
    axis = c.axis(c.int("axis", 0), c.rank(0))
    if on_host(c):
        return c.host(lambda array, places: np.take_along_axis(array, places, axis))
    check_places(c, 1, (c.shape(0)[axis],), (axis,))
    return c.b.gather(c.x(0), c.x(1), dim=axis)


@onnx_op("GatherND")
def gather_nd(c: Call) -> Any:
    x, places, batch = c.x(0), c.x(1), c.int("batch_dims", 0)
    shape, sizes = c.shape(0), c.shape(1)
    depth = sizes[-1]
    if batch < 0 or batch + depth > len(shape):
        raise ShapeError(f"{c.node}: indices {list(sizes)} with {batch} batch dimensions do not fit {list(shape)}")
    check_places(c, 1, shape[batch : batch + depth], range(batch, batch + depth))
    outer = sizes[:-1]
    indices: list[SSAValue] = [c.b.iota(shape=outer, dim=dim, dtype=i64) for dim in range(batch)]
    indices += [_part(c, places, n) for n in range(depth)]
    if not indices:
        return c.b.broadcast(x, shape=(*outer, *shape))
    return c.b.index(x, *indices, dims=tuple(range(batch + depth)), position=0)


def _part(c: Call, places: SSAValue, n: int) -> SSAValue:
    """One coordinate of places whose last dimension has all."""
    sizes = static(c.b.tensor(places))
    rank = len(sizes)
    starts = (*(0 for _ in range(rank - 1)), n)
    column = c.b.slice(places, starts=starts, shape=(*sizes[:-1], 1), steps=(1,) * rank)
    return c.b.reshape(column, shape=sizes[:-1])


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> Any:
    axis = c.axis(c.int("axis", 0), c.rank(0))
    check_places(c, 1, (c.shape(0)[axis],), (axis,))
    return c.b.scatter(c.x(0), c.x(1), c.x(2), dim=axis, kind=_kind(c))


def _kind(c: Call) -> str:
    word = c.string("reduction", "none")
    if word not in _KINDS:
        raise ModelError(f"{c.node}: attribute 'reduction' is {word!r}, expected one of {', '.join(_KINDS)}")
    return _KINDS[word]


@onnx_op("ScatterND")
def scatter_nd(c: Call) -> Any:
    x, places, updates = c.xs()
    shape, sizes = c.shape(0), c.shape(1)
    depth = sizes[-1]
    if depth > len(shape):
        raise ShapeError(f"{c.node}: indices {list(sizes)} do not fit {list(shape)}")
    check_places(c, 1, shape[:depth], range(depth))
    indices = [_part(c, places, n) for n in range(depth)]
    kind = _kind(c)
    if kind in ("assign", "add"):
        return c.b.index_put(x, *indices, updates, dims=tuple(range(depth)), position=0, accumulate=kind == "add")
    # Others scatter whole slices along one flat dimension.
    flat: SSAValue | None = None
    for n, each in enumerate(indices):
        wide = c.b.cast(each, dtype=i64) if c.b.tensor(each).dtype != i64 else each
        inside = c.b.where(c.b.lt(wide, c.b.full_like(wide, 0)), c.b.add(wide, c.b.full_like(wide, shape[n])), wide)
        step = math.prod(shape[n + 1 : depth])
        part = c.b.mul(inside, c.b.full_like(inside, step))
        flat = part if flat is None else c.b.add(flat, part)
    inner = math.prod(shape[depth:])
    rows, count = math.prod(shape[:depth]), math.prod(sizes[:-1])
    if flat is None:
        raise ShapeError(f"{c.node}: indices {list(sizes)} name no dimension")
    wide = c.b.broadcast(c.b.reshape(flat, shape=(count, 1)), shape=(count, inner))
    made = c.b.scatter(
        c.b.reshape(x, shape=(rows, inner)), wide, c.b.reshape(updates, shape=(count, inner)), dim=0, kind=kind
    )
    return c.b.reshape(made, shape=shape)


@onnx_op("TensorScatter")
def tensor_scatter(c: Call) -> Any:
    past, update = c.x(0), c.x(1)
    shape, new = c.shape(0), c.shape(1)
    axis = c.axis(c.int("axis", -2), len(shape))
    place = c.b.iota(shape=new, dim=axis, dtype=i64)
    if c.has(2):
        first = c.b.reshape(c.x(2), shape=(new[0], *(1 for _ in new[1:])))
        place = c.b.add(place, c.b.cast(first, dtype=i64) if c.b.tensor(first).dtype != i64 else first)
    if c.string("mode", "linear") == "circular":
        place = c.b.remainder(place, c.b.full_like(place, shape[axis]))
    return c.b.scatter(past, place, update, dim=axis, kind="assign")


@onnx_op("OneHot")
def one_hot(c: Call) -> Any:
    depth = int(c.known_scalar(1))
    places, sizes = c.x(0), c.shape(0)
    axis = c.axis(c.int("axis", -1), len(sizes) + 1)
    if depth < 0:
        raise ShapeError(f"{c.node}: the depth is {depth}, expected a number from 0 on")
    wide = c.b.cast(places, dtype=i64) if c.b.tensor(places).dtype != i64 else places
    wide = c.b.where(c.b.lt(wide, c.b.full_like(wide, 0)), c.b.add(wide, c.b.full_like(wide, depth)), wide)
    shape = (*sizes[:axis], 1, *sizes[axis:])
    classes = c.b.iota(shape=tuple(depth if d == axis else 1 for d in range(len(shape))), dim=axis, dtype=i64)
    hot = c.b.eq(c.b.reshape(wide, shape=shape), classes)
    values = c.x(2)
    off, on = (c.b.reshape(c.b.slice(values, starts=(n,), shape=(1,), steps=(1,)), shape=()) for n in (0, 1))
    return c.b.where(hot, on, off)


@onnx_op("TopK")
def top_k(c: Call) -> Any:
    axis = c.axis(c.int("axis", -1), c.rank(0))
    k = int(c.known_scalar(1)) if c.version >= 10 else c.int("k")
    if not 0 <= k <= c.shape(0)[axis]:
        raise ShapeError(f"{c.node}: k is {k}, expected at most {c.shape(0)[axis]}")
    values, places = c.b.topk(c.x(0), k=k, dim=axis, largest=c.flag("largest", True), sorted=True)
    return values, c.b.cast(places, dtype=i64) if c.b.tensor(places).dtype != i64 else places


@onnx_op("MaxUnpool")
def max_unpool(c: Call) -> Any:
    x, places, sizes = c.x(0), c.x(1), c.shape(0)
    window = c.ints("kernel_shape")
    spatial = len(window)
    strides, pads = c.ints("strides", (1,) * spatial), c.ints("pads", (0,) * 2 * spatial)
    own = tuple(
        (size - 1) * step + each - low - high
        for size, step, each, low, high in zip(sizes[2:], strides, window, pads[:spatial], pads[spatial:], strict=True)
    )
    shape = (*sizes[:2], *own)
    wanted = c.known_ints(2) if c.has(2) else shape
    flat = c.b.full(value=0, shape=(math.prod(wanted),), dtype=c.b.tensor(x).dtype)
    if wanted != shape:
        # Places count in the shape that the pooling had; the larger one is filled from its front.
        grid = np.arange(math.prod(shape)).reshape(shape)
        places = c.b.take(lifted(c, _moved(grid, shape, wanted)), c.b.reshape(places, shape=(math.prod(sizes),)), dim=0)
    count = math.prod(sizes)
    made = c.b.scatter(flat, c.b.reshape(places, shape=(count,)), c.b.reshape(x, shape=(count,)), dim=0, kind="assign")
    return c.b.reshape(made, shape=wanted)


def _moved(grid: np.ndarray, shape: tuple[int, ...], wanted: tuple[int, ...]) -> np.ndarray:
    """For each place in a shape its place in a larger one."""
    places = np.unravel_index(grid.reshape(-1), shape)
    return np.ravel_multi_index(places, wanted).astype(np.int64)


@onnx_op("NonZero")
def non_zero(c: Call) -> Any:
    return c.host(lambda array: np.array(np.nonzero(array), np.int64).reshape(array.ndim, -1))


@onnx_op("Compress")
def compress(c: Call) -> Any:
    if c.given("axis"):
        axis = c.axis(c.int("axis"), c.rank(0))
        return c.host(lambda array, chosen: np.compress(chosen, array, axis))
    return c.host(lambda array, chosen: np.compress(chosen, array.reshape(-1)))


@onnx_op("Unique")
def unique(c: Call) -> Any:
    axis = c.axis(c.int("axis"), c.rank(0)) if c.given("axis") else None
    ordered = c.flag("sorted", True)

    def find(array: np.ndarray) -> tuple[np.ndarray, ...]:
        values, first, inverse, counts = np.unique(
            array, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        inverse = inverse.reshape(-1)
        if not ordered:
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            values = np.take(values, order, 0 if axis is None else axis)
            first, inverse, counts = first[order], rank[inverse], counts[order]
        return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)

    return c.host(find, count=4)


@onnx_op("NonMaxSuppression")
def non_max_suppression(c: Call) -> Any:
    center = c.flag("center_point_box")

    def select(boxes: np.ndarray, scores: np.ndarray, most: Any = None, overlap: Any = None, least: Any = None) -> Any:
        limit = 0 if most is None else int(np.reshape(most, -1)[0])
        threshold = 0.0 if overlap is None else float(np.reshape(overlap, -1)[0])
        floor = -math.inf if least is None else float(np.reshape(least, -1)[0])
        chosen: list[tuple[int, int, int]] = []
        for batch, corners in enumerate(_corners(boxes, center)):
            for kind in range(scores.shape[1]):
                line = scores[batch, kind]
                taken: list[int] = []
                for place in np.argsort(-line, kind="stable"):
                    if len(taken) >= limit or not line[place] > floor:
                        break
                    if all(_overlap(corners[place], corners[each]) <= threshold for each in taken):
                        taken.append(int(place))
                chosen += [(batch, kind, place) for place in taken]
        return np.array(chosen, np.int64).reshape(-1, 3)

    return c.host(select)


def _corners(boxes: np.ndarray, center: bool) -> np.ndarray:
    """Boxes by their least and greatest coordinates."""
    if center:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The share of two boxes' union that both cover."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if (sides <= 0).any():
        return 0.0
    common = float(np.prod(sides))
    whole = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - common
    return common / whole if whole > 0 else 0.0
