"""Shapes: what is said of them, and views that change them."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.dtypes import kernel_dtype
from weft.frontends.onnx.operators.table import onnx_op

MOST_ON_HOST = 1 << 28
"""Elements of what the host makes of a few numbers in a file, at once and in memory: strings, tables."""


def on_host(c: Call, place: int = 0) -> bool:
    """Whether an input is of a type that only the host knows."""
    return kernel_dtype(c.dtype(place)) is None


@onnx_op("Identity")
def identity(c: Call) -> Any:
    return c.input(0) if c.has(0) else None


@onnx_op("Shape")
def shape(c: Call) -> Any:
    sizes = c.shape(0)
    start, end = c.int("start", 0), c.int("end", len(sizes))
    return np.array(sizes[slice(start, end)], np.int64)


@onnx_op("Size")
def size(c: Call) -> Any:
    return np.array(math.prod(c.shape(0)), np.int64)


@onnx_op("Constant")
def constant(c: Call) -> Any:
    for name in ("value", "sparse_value"):
        if c.given(name):
            return c.array(name)
    if c.given("value_int"):
        return np.array(c.int("value_int"), np.int64)
    if c.given("value_ints"):
        return np.array(c.ints("value_ints"), np.int64)
    if c.given("value_float"):
        return np.array(c.float("value_float"), np.float32)
    if c.given("value_floats"):
        return np.array(c.floats("value_floats"), np.float32)
    if c.given("value_string"):
        return np.array(c.string("value_string"), object)
    return np.array(c.strings("value_strings"), object)


@onnx_op("ConstantOfShape")
def constant_of_shape(c: Call) -> Any:
    value = c.array("value").reshape(-1) if c.given("value") else np.zeros(1, np.float32)
    sizes = checked_shape(c, c.known_ints(0))
    if kernel_dtype(value.dtype) is None:
        return np.full(checked_shape(c, sizes, MOST_ON_HOST), value[0], value.dtype)
    return c.b.full(value=value[0].item(), shape=sizes, dtype=c.kernel_type(value.dtype))


def checked_shape(c: Call, sizes: Sequence[int], most: int = 1 << 36) -> tuple[int, ...]:
    """A shape from a file or from data."""
    if any(size < 0 for size in sizes) or math.prod(max(size, 1) for size in sizes) > most or len(sizes) > 32:
        raise ShapeError(f"{c.node}: the shape is {list(sizes)[:40]}, expected sizes from 0 on that memory can hold")
    return tuple(sizes)


@onnx_op("Reshape")
def reshape(c: Call) -> Any:
    given = c.known_ints(1) if c.version >= 5 else c.ints("shape")
    return reshaped(c, resolved_shape(c, c.shape(0), given, c.flag("allowzero")))


def reshaped(c: Call, sizes: Sequence[int]) -> Any:
    if on_host(c):
        return c.host(lambda array: array.reshape(sizes), values=c.inputs[:1])
    return c.b.reshape(c.x(0), shape=tuple(sizes))


def resolved_shape(c: Call, old: Sequence[int], given: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """A target shape with 0 (copied) and -1 (inferred) replaced."""
    sizes = [
        old[place] if size == 0 and not allow_zero and place < len(old) else size for place, size in enumerate(given)
    ]
    count, rest = math.prod(old), math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1:
        if rest == 0 or count % rest:
            raise ShapeError(f"{c.node}: {list(old)} cannot become {list(given)}: {count} elements by {rest}")
        sizes[sizes.index(-1)] = count // rest
    if any(size < 0 for size in sizes) or math.prod(sizes) != count:
        raise ShapeError(f"{c.node}: {list(old)} cannot become {list(given)}")
    return tuple(sizes)


@onnx_op("Flatten")
def flatten(c: Call) -> Any:
    sizes, axis = c.shape(0), c.int("axis", 1)
    if not -len(sizes) <= axis <= len(sizes):
        raise ShapeError(f"{c.node}: axis is {axis}, expected at most the rank {len(sizes)}")
    axis = axis + len(sizes) if axis < 0 else axis
    return reshaped(c, (math.prod(sizes[:axis]), math.prod(sizes[axis:])))


def _axes(c: Call) -> tuple[int, ...] | None:
    if c.version >= 13:
        return c.known_ints(1) if c.has(1) else None
    return c.ints("axes") if c.given("axes") else None


@onnx_op("Squeeze")
def squeeze(c: Call) -> Any:
    sizes, axes = c.shape(0), _axes(c)
    dropped = [d for d, size in enumerate(sizes) if size == 1] if axes is None else c.axes(axes, len(sizes))
    if any(sizes[d] != 1 for d in dropped):
        raise ShapeError(f"{c.node}: axes are {list(dropped)} of {list(sizes)}, expected sizes of 1")
    return reshaped(c, [size for d, size in enumerate(sizes) if d not in dropped])


@onnx_op("Unsqueeze")
def unsqueeze(c: Call) -> Any:
    sizes, axes = c.shape(0), _axes(c) or ()
    places = c.axes(axes, len(sizes) + len(axes))
    rest = iter(sizes)
    return reshaped(c, [1 if d in places else next(rest) for d in range(len(sizes) + len(axes))])


@onnx_op("Transpose")
def transpose(c: Call) -> Any:
    rank = c.rank(0)
    order = c.ints("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"{c.node}: attribute 'perm' is {list(order)}, expected an order of {rank} dimensions")
    if on_host(c):
        return c.host(lambda array: np.transpose(array, order))
    return c.b.permute(c.x(0), dims=order)


@onnx_op("Expand")
def expand(c: Call) -> Any:
    wanted = checked_shape(c, c.known_ints(1))
    try:
        sizes = np.broadcast_shapes(c.shape(0), wanted)
    except ValueError as error:
        raise ShapeError(f"{c.node}: {list(c.shape(0))} and {list(wanted)} do not broadcast") from error
    if on_host(c):
        checked_shape(c, sizes, MOST_ON_HOST)
        return c.host(lambda array: np.broadcast_to(array, sizes), values=c.inputs[:1])
    return c.b.broadcast(c.x(0), shape=sizes)


@onnx_op("Tile")
def tile(c: Call) -> Any:
    repeats = c.known_ints(1)
    sizes = c.shape(0)
    if len(repeats) != len(sizes) or any(each < 0 for each in repeats):
        raise ShapeError(f"{c.node}: repeats are {list(repeats)}, expected {len(sizes)} numbers from 0 on")
    result = checked_shape(c, [size * times for size, times in zip(sizes, repeats, strict=True)])
    if on_host(c):
        checked_shape(c, result, MOST_ON_HOST)
        return c.host(lambda array: np.tile(array, repeats), values=c.inputs[:1])
    if 0 in result:
        return c.b.full(value=0, shape=result, dtype=c.kernel_type(c.dtype(0)))
    split = tuple(each for size in sizes for each in (1, size))
    wide = tuple(each for pair in zip(repeats, sizes, strict=True) for each in pair)
    return c.b.reshape(c.b.broadcast(c.b.reshape(c.x(0), shape=split), shape=wide), shape=result)


@onnx_op("DepthToSpace")
def depth_to_space(c: Call) -> Any:
    n, channels, height, width = four(c)
    size = c.int("blocksize")
    inner = channels // (size * size)
    if c.string("mode", "DCR") == "DCR":
        split = c.b.reshape(c.x(0), shape=(n, size, size, inner, height, width))
        moved = c.b.permute(split, dims=(0, 3, 4, 1, 5, 2))
    else:
        split = c.b.reshape(c.x(0), shape=(n, inner, size, size, height, width))
        moved = c.b.permute(split, dims=(0, 1, 4, 2, 5, 3))
    return c.b.reshape(moved, shape=(n, inner, height * size, width * size))


@onnx_op("SpaceToDepth")
def space_to_depth(c: Call) -> Any:
    n, channels, height, width = four(c)
    size = c.int("blocksize")
    split = c.b.reshape(c.x(0), shape=(n, channels, height // size, size, width // size, size))
    order = (0, 1, 3, 5, 2, 4) if c.string("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = c.b.permute(split, dims=order)
    return c.b.reshape(moved, shape=(n, channels * size * size, height // size, width // size))


def four(c: Call, place: int = 0) -> tuple[int, int, int, int]:
    sizes = c.shape(place)
    if len(sizes) != 4:
        raise ShapeError(f"{c.node}: input {place} has the shape {list(sizes)}, expected [N, C, H, W]")
    return sizes[0], sizes[1], sizes[2], sizes[3]


def columns(c: Call, value: SSAValue, spatial: int) -> SSAValue:
    """A vector over channels, to be broadcast over [N, C, ...]."""
    (size,) = c.b.tensor(value).shape
    return c.b.reshape(value, shape=(size, *(1 for _ in range(spatial))))
