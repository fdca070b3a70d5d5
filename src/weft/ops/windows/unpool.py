"""The gradient of max pooling, where windows keep which of their elements was the greatest: gathered, not scattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import Tensor, boolean, contiguous_strides, i64, u8
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, all_batched, size_value
from weft.ops.samples import Input, Sample
from weft.ops.windows.convolution import in_f32, spread_place
from weft.ops.windows.window import Padding, window_counts, window_slices

Sizes = tuple[Size, ...]


def _samples() -> list[Sample]:
    cases: tuple[tuple[tuple[int, ...], Sizes, tuple[int, ...], tuple[int, ...], Padding, tuple[int, ...]], ...] = (
        ((4,), (9,), (3,), (2,), ((0, 0),), (1,)),
        ((2, 3, 4, 3), (7, 6), (3, 2), (2, 2), ((1, 1), (0, 1)), (1, 1)),
        ((3, 8, 9), (8, 9), (2, 3), (1, 2), ((1, 1), (6, 4)), (2, 1)),
        ((1, 2, 3, 4), (4, 5, 4), (2, 2, 2), (2, 2, 1), ((0, 0), (1, 1), (1, 0)), (1, 1, 1)),
        ((0, 6), (5,), (2,), (1,), ((1, 1),), (1,)),
    )
    return [
        Sample(
            (Input(counts), Input(counts, 0, int(np.prod(np.array(window))), u8)),
            {"shape": shape, "window": window, "strides": strides, "padding": padding, "dilation": dilation},
        )
        for counts, shape, window, strides, padding, dilation in cases
    ]


@op("max_unpool", samples=_samples())
class MaxUnpool(Reduction):
    """Each of `shape` elements gets the sum of the values of those windows in which it has the number that they name.

    Elements of a window are numbered row by row; a window that names one in the padding adds to nothing.
    """

    KIND: ClassVar[str] = "sum"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        values, taps = tensors
        shape: Sizes = params["shape"]
        lead = values.rank - len(shape)
        if not values.dtype.is_float or not taps.dtype.is_integer:
            raise DTypeError(f"max_unpool takes floats and numbers of elements, got {values} and {taps}")
        geometry = {name: params[name] for name in ("window", "strides", "padding", "dilation")}
        counts = window_counts("max_unpool", shape, **geometry)
        if lead < 0 or values.shape != taps.shape or values.shape[lead:] != counts:
            raise ShapeError(
                f"max_unpool: {values} and {taps} do not fit windows over {shape}",
                hint=f"there are {counts} windows, with a value and a number each",
            )
        return Tensor(values.dtype, (*values.shape[:lead], *shape))

    @staticmethod
    @rounded_once
    def reference(
        values: np.ndarray,
        taps: np.ndarray,
        shape: tuple[int, ...],
        window: tuple[int, ...],
        strides: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        dilation: tuple[int, ...],
    ) -> np.ndarray:
        lead = values.ndim - len(shape)
        counts = values.shape[lead:]
        padded = [size + low + high for size, (low, high) in zip(shape, padding, strict=True)]
        result = np.zeros((*values.shape[:lead], *padded), values.dtype)
        for number, over in enumerate(np.ndindex(*window)):
            result[(..., *window_slices(over, counts, strides, dilation))] += np.where(taps == number, values, 0)
        inner = (slice(low, low + size) for (low, _), size in zip(padding, shape, strict=True))
        return result[(..., *inner)]

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, **params: Any) -> Gradients:
        (gradient,), (values, taps) = grads, operands
        shape: Sizes = params["shape"]
        lead, counts = b.tensor(gradient).shape[: -len(shape)], b.tensor(values).shape
        flat = (*lead, product(counts[len(lead) :]))
        place, inside = places_of_taps(b, taps, **params)
        place = b.where(inside, place, size_value(b, 0, i64))
        read = b.gather(b.reshape(gradient, shape=(*lead, product(shape))), b.reshape(place, shape=flat), dim=len(lead))
        return b.where(
            inside, b.reshape(read, shape=counts), b.full(value=0, shape=(), dtype=b.tensor(read).dtype)
        ), None

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        return b.max_unpool(*all_batched(b, operands, batched), **params)

    @staticmethod
    def ranges(values: Tensor, taps: Tensor, window: Sizes, **params: Any) -> Sizes:
        return window

    @staticmethod
    def element(
        body: Body,
        index: Sequence[Size],
        over: Sequence[Size],
        values: Operand,
        taps: Operand,
        shape: Sizes,
        window: Sizes,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
    ) -> Value:
        lead = len(index) - len(shape)
        counts = values.tensor.shape[lead:]
        place, mask = spread_place(body, index[lead:], over, counts, strides, padding, dilation)
        number: Size = 0
        for tap, step in zip(over, contiguous_strides(window), strict=True):
            number = number + tap * step
        at = [*index[:lead], *place]
        named = body.math("eq", body.cast(body.at(taps, at, mask, 0), i64), body.position(number, i64))
        value = in_f32(body, body.at(values, at, mask))
        return body.where(named, value, body.constant(0, value.dtype))

    @staticmethod
    def finish(body: Body, value: Value, index: Sequence[Size], values: Operand, taps: Operand, **params: Any) -> Value:
        made = values.tensor.dtype
        return value if value.dtype == made else body.cast(value, made)


def places_of_taps(
    b: GraphBuilder, taps: SSAValue, shape: Sizes, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> tuple[SSAValue, SSAValue]:
    """Where among all elements of `shape` the ones that windows name lie, and whether they are none of the padding."""
    counts, lead = b.tensor(taps).shape, b.tensor(taps).rank - len(shape)
    numbers = b.cast(taps, dtype=i64)
    place, inside = b.full(value=0, shape=counts, dtype=i64), b.full(value=True, shape=counts, dtype=boolean)
    for d, (size, step) in enumerate(zip(shape, contiguous_strides(window), strict=True)):
        tap = b.remainder(b.floordiv(numbers, size_value(b, step, i64)), size_value(b, window[d], i64))
        line = tuple(count if lead + d == at else 1 for at, count in enumerate(counts))
        first = b.iota(shape=line, dim=lead + d, dtype=i64, start=-padding[d][0], step=strides[d])
        along = b.add(first, b.mul(tap, size_value(b, dilation[d], i64)))
        none, end = size_value(b, 0, i64), size_value(b, size, i64)
        inside = b.logical_and(inside, b.logical_and(b.ge(along, none), b.lt(along, end)))
        place = b.add(b.mul(place, end), along)
    return place, inside
