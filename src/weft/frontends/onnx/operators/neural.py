"""Convolutions, and sampling of images: at grids, in regions and at deformed places."""

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
from weft.frontends.onnx.model import Node
from weft.frontends.onnx.operators.movement import padded
from weft.frontends.onnx.operators.pooling import windows
from weft.frontends.onnx.operators.shapes import columns
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.rewrite import Rewrite
from weft.ir.types import i64


@onnx_op("Conv")
def conv(c: Call) -> Any:
    made = convolved(c, c.x(0), c.x(1))
    return c.b.add(made, columns(c, c.x(2), c.rank(0) - 2)) if c.has(2) else made


def convolved(c: Call, x: SSAValue, w: SSAValue) -> SSAValue:
    """The convolution that a node's attributes describe."""
    sizes, kernel = static(c.b.tensor(x)), static(c.b.tensor(w))
    if len(sizes) != len(kernel) or len(sizes) < 3:
        raise ShapeError(f"{c.node}: weights {list(kernel)} do not fit {list(sizes)}")
    place = windows(c, sizes[2:], kernel[2:])
    return c.b.convolution(
        x,
        w,
        strides=place.strides,
        padding=place.padding,
        dilation=place.dilation,
        groups=c.int("group", 1),
        transposed=False,
        output_padding=(0,) * (len(sizes) - 2),
    )


@onnx_op("ConvTranspose")
def conv_transpose(c: Call) -> Any:
    x, w, sizes, kernel = c.x(0), c.x(1), c.shape(0)[2:], c.shape(1)[2:]
    rank = len(sizes)
    strides, dilation = c.ints("strides", (1,) * rank), c.ints("dilations", (1,) * rank)
    extra = c.ints("output_padding", (0,) * rank)
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    whole = [(size - 1) * step + span for size, step, span in zip(sizes, strides, spans, strict=True)]
    auto = c.string("auto_pad", "NOTSET")
    pads = c.ints("pads", (0,) * 2 * rank)
    low, high = list(pads[:rank]), list(pads[rank:])
    wanted: list[int] | None = None
    if c.given("output_shape"):
        wanted = list(c.ints("output_shape"))[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * step for size, step in zip(sizes, strides, strict=True)]
    if wanted is not None:
        for d in range(rank):
            total = whole[d] + extra[d] - wanted[d]
            less = total // 2
            low[d], high[d] = (total - less, less) if auto == "SAME_LOWER" or auto == "NOTSET" else (less, total - less)
            if auto == "SAME_UPPER":
                low[d], high[d] = less, total - less
            elif auto == "NOTSET":
                low[d], high[d] = total - less, less
    made = c.b.convolution(
        x,
        w,
        strides=strides,
        padding=((0, 0),) * rank,
        dilation=dilation,
        groups=c.int("group", 1),
        transposed=True,
        output_padding=(0,) * rank,
    )
    front, behind = [0, 0, *(-n for n in low)], [0, 0, *(more - n for n, more in zip(high, extra, strict=True))]
    made = padded(c, made, front, behind, "constant", 0.0)
    return c.b.add(made, columns(c, c.x(2), rank)) if c.has(2) else made


@onnx_op("GridSample")
def grid_sample(c: Call) -> Any:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = c.string("mode", "bilinear" if c.version < 20 else "linear")
    edges = {"zeros": "zeros", "border": "border", "reflection": "reflection"}
    padding = c.string("padding_mode", "zeros")
    mode = names.get(mode, mode)
    if padding not in edges or mode not in ("linear", "nearest", "cubic"):
        raise ModelError(f"{c.node}: mode {mode!r} with padding {padding!r} is not one that GridSample has")
    grid = c.x(1)
    if c.b.tensor(grid).dtype != c.b.tensor(c.x(0)).dtype:
        grid = c.b.cast(grid, dtype=c.b.tensor(c.x(0)).dtype)
    return c.b.grid_sample(c.x(0), grid, mode=mode, padding=edges[padding], align_corners=c.flag("align_corners"))


@onnx_op("Col2Im")
def column_to_image(c: Call) -> Any:
    shape, block = c.known_ints(1), c.known_ints(2)
    rank = len(shape)
    strides, dilation = c.ints("strides", (1,) * rank), c.ints("dilations", (1,) * rank)
    pads = c.ints("pads", (0,) * 2 * rank)
    n, rows, _ = c.shape(0)
    channels = rows // math.prod(block)
    padding = tuple((pads[d], pads[d + rank]) for d in range(rank))
    counts = tuple(
        (size + low + high - ((each - 1) * step + 1)) // stride + 1
        for size, (low, high), each, step, stride in zip(shape, padding, block, dilation, strides, strict=True)
    )
    x = c.b.reshape(c.x(0), shape=(n, channels, *block, *counts))
    order = (0, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank), 1)
    made = c.b.fold(c.b.permute(x, dims=order), shape=tuple(shape), strides=strides, padding=padding, dilation=dilation)
    return c.b.permute(made, dims=(0, rank + 1, *range(1, rank + 1)))


def sampled(
    c: Call, x: SSAValue, batch: SSAValue, y: SSAValue, z: SSAValue, outside: str, joined: str = "add"
) -> SSAValue:
    """Linear interpolation of images [N, C, H, W] at places: [places..., C].

    `outside` says what lies beyond: `zero` for each neighbour, or `roi`: nothing beyond one element outside, and the
    border within it. The weighted neighbours are `joined` by addition, or by another op.
    """
    b = c.b
    height, width = static(b.tensor(x))[2:]

    def number(value: float) -> SSAValue:
        return b.full(value=value, shape=(), dtype=b.tensor(y).dtype)

    valid: SSAValue | None = None
    if outside == "roi":
        for place, size in ((y, height), (z, width)):
            inside = b.logical_and(b.ge(place, number(-1.0)), b.le(place, number(float(size))))
            valid = inside if valid is None else b.logical_and(valid, inside)
        y, z = b.clamp(y, low=0.0, high=height - 1.0), b.clamp(z, low=0.0, high=width - 1.0)
    parts: list[SSAValue] = []
    top, left = b.floor(y), b.floor(z)
    for down in (0, 1):
        for right in (0, 1):
            row, column = b.add(top, number(down)), b.add(left, number(right))
            weight = b.mul(b.sub(number(1.0), b.abs(b.sub(y, row))), b.sub(number(1.0), b.abs(b.sub(z, column))))
            inside = b.logical_and(
                b.logical_and(b.ge(row, number(0.0)), b.le(row, number(height - 1.0))),
                b.logical_and(b.ge(column, number(0.0)), b.le(column, number(width - 1.0))),
            )
            weight = b.where(inside, weight, number(0.0))
            row = b.cast(b.clamp(row, low=0.0, high=height - 1.0), dtype=i64)
            column = b.cast(b.clamp(column, low=0.0, high=width - 1.0), dtype=i64)
            shape = static(b.tensor(weight))
            indices = [b.broadcast(each, shape=shape) for each in (batch, row, column)]
            # Dimensions that are not indexed follow those of the places.
            values = b.index(x, *indices, dims=(0, 2, 3), position=0)
            parts.append(b.mul(values, b.reshape(weight, shape=(*shape, 1))))
    total = parts[0]
    for part in parts[1:]:
        total = b.emit(joined, total, part)
    if valid is not None:
        total = b.where(b.reshape(valid, shape=(*static(b.tensor(valid)), 1)), total, b.full_like(total, 0))
    return total


@onnx_op("RoiAlign")
def roi_align(c: Call) -> Any:
    b, x, rois = c.b, c.x(0), c.x(1)
    count = c.shape(1)[0]
    dtype = b.tensor(x).dtype
    scale, ratio = c.float("spatial_scale", 1.0), c.int("sampling_ratio", 0)
    rows, cols = c.int("output_height", 1), c.int("output_width", 1)
    half = c.string("coordinate_transformation_mode", "half_pixel" if c.version >= 16 else "output_half_pixel")
    mode = c.string("mode", "avg")
    if mode not in ("avg", "max"):
        raise ModelError(f"{c.node}: attribute 'mode' is {mode!r}, expected avg or max")
    shift = 0.5 if half == "half_pixel" else 0.0

    def number(value: float) -> SSAValue:
        return b.full(value=value, shape=(), dtype=dtype)

    corners = b.sub(b.mul(rois, number(scale)), number(shift))
    left, top, right, bottom = (b.slice(corners, starts=(0, n), shape=(count, 1), steps=(1, 1)) for n in range(4))
    extents = [b.sub(right, left), b.sub(bottom, top)]
    if half != "half_pixel":
        extents = [b.maximum(each, number(1.0)) for each in extents]
    if ratio > 0:
        taps = (ratio, ratio)
    else:  # as many as a region has elements: regions have to be known
        known = c.known(1) * scale
        sides = [(known[:, 3] - known[:, 1]) / rows, (known[:, 2] - known[:, 0]) / cols]
        needed = [{max(math.ceil(side), 1) for side in each.tolist()} for each in sides]
        if any(len(each) > 1 for each in needed):
            return _roi_align_apart(c)
        taps = (needed[0].pop(), needed[1].pop()) if count else (1, 1)
    places = [
        _places(c, start, extent, size, tap, number)
        for start, extent, size, tap in ((top, extents[1], rows, taps[0]), (left, extents[0], cols, taps[1]))
    ]
    batch = c.x(2)
    batch = b.reshape(b.cast(batch, dtype=i64) if b.tensor(batch).dtype != i64 else batch, shape=(count, 1, 1))
    lines, columns_ = rows * taps[0], cols * taps[1]
    y = b.reshape(places[0], shape=(count, lines, 1))
    z = b.reshape(places[1], shape=(count, 1, columns_))
    y, z = b.broadcast(y, shape=(count, lines, columns_)), b.broadcast(z, shape=(count, lines, columns_))
    channels = c.shape(0)[1]
    values = sampled(c, x, batch, y, z, "roi", "maximum" if mode == "max" else "add")
    values = b.reshape(values, shape=(count, rows, taps[0], cols, taps[1], channels))
    if mode == "max":
        return b.permute(b.max(values, dims=(2, 4), keep=False), dims=(0, 3, 1, 2))
    total = b.sum(values, dims=(2, 4), keep=False)
    return b.permute(b.div(total, b.full_like(total, taps[0] * taps[1])), dims=(0, 3, 1, 2))


def _places(c: Call, start: SSAValue, extent: SSAValue, size: int, taps: int, number: Any) -> SSAValue:
    """The coordinates of samples along one side of regions: [regions, size * taps]."""
    b = c.b
    steps = b.iota(shape=(1, size * taps), dim=1, dtype=b.tensor(start).dtype)
    places = b.mul(b.add(steps, number(0.5)), number(1.0 / taps))
    return b.add(start, b.mul(places, b.div(extent, number(float(size)))))


def _roi_align_apart(c: Call) -> Any:
    """Regions that need different numbers of samples: each by itself, and all together."""
    nodes: list[Node] = []
    arrays: dict[str, np.ndarray] = {}
    parts: list[str] = []
    for n in range(c.shape(1)[0]):
        name = f"{c.node.outputs[0]}\0region{n}"
        arrays[f"{name}\0place"] = np.array([n], np.int64)
        for place in (1, 2):
            gathered = Node("Gather", "", (c.node.inputs[place], f"{name}\0place"), (f"{name}\0{place}",))
            nodes.append(gathered)
        inputs = (c.node.inputs[0], f"{name}\0001", f"{name}\0002")
        nodes.append(Node("RoiAlign", "", inputs, (name,), c.node.attributes, c.node.name))
        parts.append(name)
    nodes.append(Node("Concat", "", tuple(parts), c.node.outputs, {"axis": 0}, c.node.name))
    return Rewrite(nodes, arrays)


@onnx_op("DeformConv")
def deform_conv(c: Call) -> Any:
    b, x, w, offset = c.b, c.x(0), c.x(1), c.x(2)
    n, channels, *sizes = c.shape(0)
    if len(sizes) != 2:
        raise c.unsupported("deformed convolutions have two spatial dimensions")
    outs, _, *kernel = c.shape(1)
    place = windows(c, tuple(sizes), tuple(kernel))
    groups, spread = c.int("group", 1), c.int("offset_group", 1)
    height, width = c.shape(2)[2:]
    taps = kernel[0] * kernel[1]
    offsets = b.reshape(offset, shape=(n, spread, taps, 2, height, width))
    dtype = b.tensor(x).dtype

    def base(d: int) -> SSAValue:
        """Where a tap lies without its offset: [1, 1, taps, height, width]."""
        shape = (1, 1, kernel[0], kernel[1], height, width)
        step = b.iota(shape=shape, dim=2 + d, dtype=dtype, step=float(place.dilation[d]))
        start = b.iota(
            shape=shape, dim=4 + d, dtype=dtype, step=float(place.strides[d]), start=-float(place.padding[d][0])
        )
        return b.reshape(b.add(step, start), shape=(1, 1, taps, height, width))

    parts = [
        b.reshape(
            b.slice(offsets, starts=(0, 0, 0, d, 0, 0), shape=(n, spread, taps, 1, height, width), steps=(1,) * 6),
            shape=(n, spread, taps, height, width),
        )
        for d in (0, 1)
    ]
    y, z = (b.add(each, base(d)) for d, each in enumerate(parts))
    inner = channels // spread
    images = b.reshape(x, shape=(n * spread, inner, *sizes))
    shape = (n * spread, taps, height, width)
    batch = b.iota(shape=(n * spread, 1, 1, 1), dim=0, dtype=i64)
    values = sampled(c, images, batch, b.reshape(y, shape=shape), b.reshape(z, shape=shape), "zero")
    if c.has(4):
        values = b.mul(values, b.reshape(c.x(4), shape=(*shape, 1)))
    # [N, spread, taps, H, W, inner] as [N, groups, C / groups * taps, H * W]
    values = b.reshape(values, shape=(n, spread, taps, height, width, inner))
    values = b.permute(values, dims=(0, 1, 5, 2, 3, 4))
    values = b.reshape(values, shape=(n, groups, channels // groups * taps, height * width))
    weights = b.reshape(w, shape=(1, groups, outs // groups, channels // groups * taps))
    weights = b.broadcast(weights, shape=(n, groups, outs // groups, channels // groups * taps))
    made = b.reshape(b.dot(weights, values), shape=(n, outs, height, width))
    return b.add(made, columns(c, c.x(3), 2)) if c.has(3) else made
