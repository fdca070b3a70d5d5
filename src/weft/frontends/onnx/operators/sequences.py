"""Sequences and optionals: how many values they have is known at import, so that they cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import DataError, ShapeError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.movement import pieces
from weft.frontends.onnx.operators.shapes import on_host
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.rewrite import INTERNAL
from weft.frontends.onnx.values import Absent, Items, Traced


@onnx_op("SequenceEmpty")
def sequence_empty(c: Call) -> Any:
    return Items(())


@onnx_op("SequenceConstruct")
def sequence_construct(c: Call) -> Any:
    return Items(c.inputs)


def _place(c: Call, input_: int, length: int, end: int) -> int:
    place = int(c.known_scalar(input_))
    if not -length <= place < end:
        raise DataError(f"{c.node}: the position is {place} in a sequence of {length}")
    return place + length if place < 0 else place


@onnx_op("SequenceAt")
def sequence_at(c: Call) -> Any:
    values = c.sequence(0).values
    return values[_place(c, 1, len(values), len(values))]


@onnx_op("SequenceInsert")
def sequence_insert(c: Call) -> Any:
    values = c.sequence(0).values
    place = _place(c, 2, len(values), len(values) + 1) if c.has(2) else len(values)
    return Items((*values[:place], c.input(1), *values[place:]))


@onnx_op("SequenceErase")
def sequence_erase(c: Call) -> Any:
    values = c.sequence(0).values
    place = _place(c, 1, len(values), len(values)) if c.has(1) else len(values) - 1
    return Items((*values[:place], *values[place + 1 :]))


@onnx_op("SequenceLength")
def sequence_length(c: Call) -> Any:
    return np.array(len(c.sequence(0).values), np.int64)


_MOST_PARTS = 1 << 12
"""Tensors that one node may be split into: each is an op of the graph."""


@onnx_op("SplitToSequence")
def split_to_sequence(c: Call) -> Any:
    axis, shape = c.axis(c.int("axis", 0), c.rank(0)), c.shape(0)
    size = shape[axis]
    if c.has(1) and c.rank(1) == 1:
        sizes = list(c.known_ints(1))
    else:
        each = int(c.known_scalar(1)) if c.has(1) else 1
        if each < 1:
            raise ShapeError(f"{c.node}: parts have the size {each}, expected at least 1")
        if -(-size // each) > _MOST_PARTS:
            raise c.unsupported(f"{-(-size // each)} parts, expected at most {_MOST_PARTS}")
        sizes = [min(each, size - start) for start in range(0, size, each)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ShapeError(f"{c.node}: parts are {sizes}, expected sizes whose sum is {size}")
    x = c.x(0)
    parts = [pieces(c, x, axis, sum(sizes[:n]), each) for n, each in enumerate(sizes)]
    if not c.has(1) and not c.flag("keepdims", True):
        rest = tuple(each for d, each in enumerate(shape) if d != axis)
        parts = [c.b.reshape(part, shape=rest) for part in parts]
    return Items(tuple(Traced(part) for part in parts))


@onnx_op("ConcatFromSequence")
def concat_from_sequence(c: Call) -> Any:
    values = c.sequence(0).values
    if not values:
        raise DataError(f"{c.node}: the sequence is empty, expected at least one tensor")
    call = Call(c.scope, c.node, values, c.version)
    new = c.flag("new_axis")
    axis = c.axis(c.int("axis"), call.rank(0) + new)
    if on_host(call):
        join = np.stack if new else np.concatenate
        return c.host(lambda *arrays: join(arrays, axis), values)
    xs = call.xs()
    if new:
        shape = call.shape(0)
        xs = [c.b.reshape(x, shape=(*shape[:axis], 1, *shape[axis:])) for x in xs]
    return xs[0] if len(xs) == 1 else c.b.concat(*xs, dim=axis)


@onnx_op("Append", domain=INTERNAL)
def append(c: Call) -> Any:
    return Items((*c.sequence(0).values, c.input(1)))


@onnx_op("Stack", domain=INTERNAL)
def stack(c: Call) -> Any:
    """Values of a loop's turns as one tensor; `empty` is the shape of each where there was no turn."""
    values = c.sequence(0).values
    axis = c.int("axis", 0)
    if not values:
        dtype = c.numpy_type("type")
        shape = c.ints("empty", ())
        axis = c.axis(axis, len(shape) + 1)
        return np.zeros((*shape[:axis], 0, *shape[axis:]), dtype)
    call = Call(c.scope, c.node, values, c.version)
    shape = call.shape(0)
    axis = c.axis(axis, len(shape) + 1)
    if on_host(call):
        return c.host(lambda *arrays: np.stack(arrays, axis), values)
    if any(call.shape(n) != shape for n in range(len(values))):
        raise ShapeError(f"{c.node}: turns of the loop give different shapes, expected {list(shape)} of all")
    xs = [c.b.reshape(x, shape=(*shape[:axis], 1, *shape[axis:])) for x in call.xs()]
    return xs[0] if len(xs) == 1 else c.b.concat(*xs, dim=axis)


@onnx_op("Optional")
def optional(c: Call) -> Any:
    return c.input(0) if c.has(0) else Absent()


@onnx_op("OptionalHasElement")
def optional_has_element(c: Call) -> Any:
    return np.array(c.has(0), bool)


@onnx_op("OptionalGetElement")
def optional_get_element(c: Call) -> Any:
    if not c.has(0):
        raise DataError(f"{c.node}: the optional is empty, expected a value")
    return c.input(0)
