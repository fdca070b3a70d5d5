"""Making tiles and changing their shape. Reshapes, transposes, slices and broadcasts are views of the builder."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import where
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import (
    broadcast_pair,
    constant,
    row_major,
    spread,
    to_tensor,
    typed,
    viewed,
)
from weft.frontends.triton.language.types import check_shape
from weft.frontends.triton.language.values import member, operator, slice, tensor, tuple


def items(values: Any) -> list[Any]:
    """Arguments given one by one or as one sequence, unwrapped."""
    several: list[Any] = list(unwrap(values))
    if len(several) == 1:
        only = unwrap(several[0])
        if isinstance(only, (list, builtins.tuple, tuple)):
            several = list(cast("Sequence[Any]", only))
    return [unwrap(value) for value in several]


def wrapped_axis(axis: Any, rank: int) -> int:
    """An axis counted from the front."""
    axis = unwrap(axis)
    if not isinstance(axis, int):
        raise KernelTypeError(f"an axis is a number known at compile time, got {axis}")
    if not -rank <= axis < rank:
        raise KernelValueError(f"invalid axis {axis}. Expected {-rank} <= axis < {rank}")
    return axis % rank


def _checked_program_axis(axis: Any, name: str) -> int:
    axis = unwrap(axis)
    if not isinstance(axis, int) or axis not in (0, 1, 2):
        raise KernelValueError(f"{name} axis must be 0, 1, or 2 but got {axis}")
    return axis


def program_id(axis: Any) -> tensor:
    """The number of this program along an axis of the grid."""
    return tensor(builder.current.get().program_id(_checked_program_axis(axis, "program_id")), types.int32)


def num_programs(axis: Any) -> tensor:
    """How many programs the grid has along an axis."""
    return tensor(builder.current.get().num_programs(_checked_program_axis(axis, "num_programs")), types.int32)


def arange(start: Any, end: Any) -> tensor:
    """start, start + 1, ..., end - 1."""
    start, end = unwrap(start), unwrap(end)
    if not isinstance(start, int) or not isinstance(end, int):
        raise KernelValueError(
            f"arange's arguments must be of type tl.constexpr, got {start} and {end}",
            hint=types.WHOLE_NUMBER
            if isinstance(start, float) or isinstance(end, float)
            else "annotate the parameter that it comes from: BLOCK: tl.constexpr",
        )
    if end <= start:
        raise KernelValueError(f"arange's end argument must be greater than the start argument, got {start} and {end}")
    if start < -(1 << 31) or end > (1 << 31):
        raise KernelValueError("arange must fit in int32")
    (length,) = check_shape([end - start])
    return typed(builder.current.get().arange(start, end), types.int32, [length])


def full(shape: Any, value: Any, dtype: Any) -> tensor:
    """A tile of one value."""
    sides, value, element = check_shape(items([shape])), unwrap(value), unwrap(dtype)
    if not isinstance(element, types.dtype):
        raise KernelTypeError(f"{element!r} is not a type for tl.full", hint="use tl.float32, tl.int32, ...")
    if isinstance(value, tensor):
        if math.prod(value.sides) != 1:
            raise KernelShapeError(f"tl.full takes one value, got {value}", hint="use tl.broadcast_to")
        return spread(converted(item(value), element, None), sides)
    return constant(value, element, sides)


def zeros(shape: Any, dtype: Any) -> tensor:
    """A tile of zeros."""
    return full(shape, 0, dtype)


def zeros_like(input: tensor) -> tensor:
    """Zeros, in the shape and type of another tile."""
    return full(input.shape, 0, input.dtype) if input.sides else constant(0, input.dtype)


def broadcast(input: Any, other: Any) -> builtins.tuple[tensor, tensor]:
    """Two tiles, spread to their common shape."""
    return broadcast_pair(to_tensor(input), to_tensor(other))


@member
def broadcast_to(input: Any, *shape: Any) -> tensor:
    """A tile whose sides of length 1 are spread to a shape."""
    return spread(to_tensor(input), check_shape(items(shape)))


@member
def reshape(input: tensor, *shape: Any, can_reorder: Any = False) -> tensor:
    """The same elements, row by row, in another shape."""
    sides = check_shape(items(shape))
    if math.prod(sides) != math.prod(input.sides):
        raise KernelShapeError(
            f"reshape() cannot change total number of elements in tensor: {list(input.sides)} to {list(sides)}"
        )
    return viewed(input, sides, 0, row_major(sides))


@member
def view(input: tensor, *shape: Any) -> tensor:
    """An old name of `reshape`."""
    return reshape(input, *shape)


@member
def item(input: Any) -> tensor:
    """The one element of a tile, as a scalar."""
    input = to_tensor(input)
    if math.prod(input.sides) != 1:
        raise KernelShapeError(f"only a tile of one element has an item, got {input}")
    return viewed(input, (), 0, []) if input.sides else input


@member
def ravel(x: tensor, can_reorder: Any = False) -> tensor:
    """All elements in one row."""
    return reshape(x, [math.prod(x.sides)])


@member
def expand_dims(input: Any, axis: Any) -> tensor:
    """New sides of length 1."""
    value, axes = to_tensor(input), unwrap(axis)
    wanted = items([axes])
    rank = len(value.sides) + len(wanted)
    places = [wrapped_axis(a, rank) for a in wanted]
    if len(set(places)) != len(places):
        raise KernelValueError(f"expand_dims received duplicate axes, normalized axes = {places}")
    sides = list(value.sides)
    for place in sorted(places):
        sides.insert(place, 1)
    return viewed(value, sides, 0, row_major(sides))


@member
def squeeze(x: tensor, dim: Any) -> tensor:
    """Without a side of length 1."""
    axis = wrapped_axis(dim, len(x.sides))
    if x.sides[axis] != 1:
        raise KernelShapeError(f"squeeze takes away sides of length 1, side {axis} of {x} has {x.sides[axis]}")
    sides = [side for place, side in enumerate(x.sides) if place != axis]
    return viewed(x, sides, 0, row_major(sides))


@member
def unsqueeze(x: tensor, dim: Any) -> tensor:
    """With a side of length 1 more."""
    return expand_dims(x, dim)


@operator("index")
def index(value: tensor, places: Any) -> tensor:
    """`x[:, None]`: whole axes, and new ones."""
    places = unwrap(places)
    if isinstance(places, tuple):
        places = places.values
    entries: list[Any] = list(cast("list[Any]", places)) if isinstance(places, (list, builtins.tuple)) else [places]
    axis, result = 0, value
    for entry in entries:
        entry = unwrap(entry)
        if entry is None:
            result = expand_dims(result, axis)
        elif not _is_whole(entry):
            raise KernelValueError(
                f"unsupported tensor index: {entry}",
                hint="a tile takes `:` and `None`; pick elements with tl.gather, tl.split, or a mask and tl.sum",
            )
        axis += 1
    # A scalar is indexed as if it had all the axes that are named: kernels do so to keep the axes of a reduction.
    if value.sides and axis > len(result.sides):
        raise KernelShapeError(f"too many indices for {value}: {len(entries)}")
    return result


def _is_whole(entry: Any) -> bool:
    if not isinstance(entry, (slice, builtins.slice)):
        return False
    part = cast(slice, entry)
    return all(unwrap(bound) is None for bound in (part.start, part.stop, part.step))


@member
def permute(input: tensor, *dims: Any) -> tensor:
    """The axes in another order."""
    order = items(dims)
    rank = len(input.sides)
    if len(order) != rank:
        raise KernelShapeError(f"permute dims must have the same length as input shape, got {order} for {input}")
    order = [wrapped_axis(axis, rank) for axis in order]
    if sorted(order) != list(range(rank)):
        raise KernelValueError(f"permute dims must be a permutation of 0, 1, ..., n-1, but were {order}")
    strides = row_major(input.sides)
    return viewed(input, [input.sides[axis] for axis in order], 0, [strides[axis] for axis in order])


@operator("trans")
@member
def trans(input: tensor, *dims: Any) -> tensor:
    """The axes in another order; with none given, the last two change places."""
    rank = len(input.sides)
    if not items(dims):
        if rank < 2:
            raise KernelValueError(f"tl.trans invoked with a 0- or 1-dimensional tensor: {input}")
        return permute(input, [*range(rank - 2), rank - 1, rank - 2])
    return permute(input, *dims)


def join(a: Any, b: Any) -> tensor:
    """Two tiles side by side, along a new last axis of length 2."""
    first, second = broadcast_pair(to_tensor(a), to_tensor(b))
    if first.dtype != second.dtype:
        raise KernelTypeError(f"tl.join takes tiles of one type, got {first} and {second}", hint="cast one of them")
    sides = [*first.sides, 2]
    strides = [*row_major(first.sides), 0]
    left = viewed(first, sides, 0, strides)
    right = viewed(second, sides, 0, strides)
    side = viewed(arange(0, 2), sides, 0, [0] * len(first.sides) + [1])
    return where(side < constant(1, types.int32), left, right)


@member
def split(a: tensor) -> builtins.tuple[tensor, tensor]:
    """The two halves of a last axis of length 2."""
    if not a.sides or a.sides[-1] != 2:
        raise KernelShapeError(
            f"tl.split takes a tile whose last side is 2, got {a}", hint="reshape it to [..., n // 2, 2] first"
        )
    sides, strides = a.sides[:-1], row_major(a.sides)[:-1]
    return viewed(a, sides, 0, strides), viewed(a, sides, 1, strides)


def interleave(a: Any, b: Any) -> tensor:
    """Elements of two tiles by turns, along the last axis."""
    joined = join(a, b)
    sides = joined.sides
    return joined if len(sides) == 1 else reshape(joined, [*sides[:-2], 2 * sides[-2]])


def cat(input: tensor, other: tensor, can_reorder: Any = False, dim: Any = 0) -> tensor:
    """Two tiles one after the other."""
    axis = wrapped_axis(dim, len(input.sides))
    if [s for i, s in enumerate(input.sides) if i != axis] != [s for i, s in enumerate(other.sides) if i != axis]:
        raise KernelShapeError(f"tl.cat takes tiles of one shape but for the axis {axis}, got {input} and {other}")
    if input.dtype != other.dtype:
        raise KernelTypeError(f"tl.cat takes tiles of one type, got {input} and {other}", hint="cast one of them")
    if input.sides == other.sides:
        stacked = join(input, other)
        rank = len(input.sides)
        order = [*range(axis), rank, *range(axis, rank)]
        return reshape(permute(stacked, order), [2 * s if i == axis else s for i, s in enumerate(input.sides)])
    left, right = input.sides[axis], other.sides[axis]
    sides = [left + right if i == axis else s for i, s in enumerate(input.sides)]
    place = viewed(arange(0, left + right), sides, 0, [int(i == axis) for i in range(len(sides))])
    inside = place < left
    zero = constant(0, types.int32)
    first = gather(input, where(inside, place, zero), axis)
    return where(inside, first, gather(other, where(inside, zero, place - left), axis))


@member
def gather(src: tensor, index: tensor, axis: Any) -> tensor:
    """The elements at indices along an axis."""
    rank = len(src.sides)
    if not index.dtype.is_int():
        raise KernelTypeError(f"index must be an integer tensor, got {index}")
    if len(index.sides) != rank:
        raise KernelShapeError(f"source and index tensors must have the same rank, got {src} and {index}")
    place = wrapped_axis(axis, rank)
    for i, (have, want) in enumerate(zip(index.sides, src.sides, strict=True)):
        if i != place and have != want:
            raise KernelShapeError(
                f"index dim {i} must match the corresponding source dim: {list(index.sides)}, {list(src.sides)}"
            )
    indices = converted(index, types.int32, None)
    return typed(builder.current.get().take(src.handle, indices.handle, place), src.dtype, index.sides)


@member
def flip(x: tensor, dim: Any = None) -> tensor:
    """The elements along an axis in the opposite order."""
    axis = wrapped_axis(len(x.sides) - 1 if unwrap(dim) is None else dim, len(x.sides))
    strides = row_major(x.sides)
    offset = strides[axis] * (x.sides[axis] - 1)
    return viewed(x, x.sides, offset, [-s if i == axis else s for i, s in enumerate(strides)])


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> builtins.tuple[Any, Any]:
    """Places of a row-major walk over size_i x size_j, as a walk column by column in groups of size_g rows."""
    from weft.frontends.triton.language.arithmetic import minimum

    place = i * size_j + j
    group = place // (size_g * size_j)
    first = group * size_g
    rows = minimum(size_i - first, size_g)
    place = place % (size_g * size_j)
    return first + place % rows, place // rows
