"""Pooling: the sum or the greatest element of each window over the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size, ceildiv, floordiv, maximum, mod, product
from weft.ir.types import DType, Tensor, boolean, contiguous_strides, dtype_of_numpy, i64
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import NARROW, rounded_once
from weft.ops.reduce import least
from weft.ops.rules import Gradients, Values, zeros
from weft.ops.samples import Input, Sample
from weft.ops.windows.convolution import Convolution
from weft.ops.windows.window import Padding, window_counts, window_place, windows

Sizes = tuple[Size, ...]


def _samples(dtypes: tuple[DType, ...] = NUMBERS) -> list[Sample]:
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Padding, tuple[int, ...]], ...] = (
        ((9,), (3,), (2,), ((0, 0),), (1,)),
        ((2, 3, 7, 6), (3, 2), (2, 2), ((1, 1), (0, 1)), (1, 1)),
        ((3, 8, 9), (2, 3), (1, 2), ((1, 0), (1, 2)), (2, 1)),
        ((1, 4, 5, 4), (2, 2, 2), (2, 2, 1), ((0, 0), (1, 1), (1, 0)), (1, 1, 1)),
        ((0, 5), (2,), (1,), ((1, 1),), (1,)),
    )
    return [
        Sample((Input(x),), {"window": window, "strides": strides, "padding": padding, "dilation": dilation}, dtypes)
        for x, window, strides, padding, dilation in cases
    ]


class Pool(Reduction):
    """A reduction over windows: `window` elements, `dilation` apart, every `strides`, with `padding` on both sides."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        if x.dtype == boolean:
            raise DTypeError(f"{cls.name} takes numbers, got {x}")
        lead = x.rank - len(params["window"])
        if lead < 0:
            raise ShapeError(f"{cls.name}: {x} has fewer dimensions than the window {params['window']}")
        return Tensor(cls.result(x.dtype), (*x.shape[:lead], *window_counts(cls.name, x.shape[lead:], **params)))

    @classmethod
    def result(cls, dtype: DType) -> DType:
        """The element type of the result."""
        return dtype

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        return b.emit(cls.name.removeprefix("graph."), operands[0], **params)

    @staticmethod
    def ranges(x: Tensor, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes) -> Sizes:
        return window


def _padded(
    body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, other: float | int, **params: Any
) -> Value:
    """The element `over` of the window `index`, or `other` outside."""
    lead = len(index) - len(over)
    geometry = {key: params[key] for key in ("strides", "padding", "dilation")}
    place, mask = window_place(body, index[lead:], over, x.tensor.shape[lead:], **geometry)
    return body.at(x, [*index[:lead], *place], mask, other)


@op("sum_pool", samples=_samples())
class SumPool(Pool):
    """The sum of each window; narrow floats are accumulated in f32."""

    KIND: ClassVar[str] = "sum"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, window: tuple[int, ...], **geometry: Any) -> np.ndarray:
        lead = x.ndim - len(window)
        counts: Any = window_counts("sum_pool", x.shape[lead:], window, **geometry)
        result = np.zeros((*x.shape[:lead], *counts), x.dtype)
        for _, elements in windows(x, window, counts, **geometry, value=0):
            result += elements
        return result

    @staticmethod
    def vjp(
        b: GraphBuilder, grads: Values, operands: Values, results: Values, window: Sizes, **geometry: Any
    ) -> Gradients:
        # Every gradient goes to its whole window, as a transposed convolution with ones does.
        shape, counts = b.tensor(operands[0]).shape, b.tensor(grads[0]).shape
        lead = len(shape) - len(window)
        g = b.reshape(grads[0], shape=(product(shape[:lead]), 1, *counts[lead:]))
        ones = b.full(value=1, shape=(1, 1, *window), dtype=b.tensor(g).dtype)
        params = {**geometry, "groups": 1, "transposed": True, "output_padding": (0,) * len(window)}
        least_shape = Convolution.infer(b.tensor(g), b.tensor(ones), **params).shape
        missing = tuple(size - reached for size, reached in zip(shape[lead:], least_shape[2:], strict=True))
        spread = b.convolution(g, ones, **(params | {"output_padding": missing}))
        return (b.reshape(spread, shape=shape),)

    @staticmethod
    def element(body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, **params: Any) -> Value:
        return _padded(body, index, over, x, 0, **params)


@op("max_pool", samples=_samples())
class MaxPool(Pool):
    """The greatest element of each window, or NaN if one is there; padding is never it."""

    KIND: ClassVar[str] = "max"

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, window: tuple[int, ...], **geometry: Any) -> np.ndarray:
        lead, floor = x.ndim - len(window), least(dtype_of_numpy(x.dtype))
        counts: Any = window_counts("max_pool", x.shape[lead:], window, **geometry)
        result = np.full((*x.shape[:lead], *counts), floor, x.dtype)
        for _, elements in windows(x, window, counts, **geometry, value=floor):
            result = np.maximum(result, elements)
        return result

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, **params: Any) -> Gradients:
        (x,) = operands
        places = b.max_pool_indices(x, **params)
        return (max_unpool(b, grads[0], places, b.tensor(x).shape, len(params["window"])),)

    @staticmethod
    def element(body: Body, index: Sequence[Size], over: Sequence[Size], x: Operand, **params: Any) -> Value:
        return _padded(body, index, over, x, least(x.tensor.dtype), **params)


def max_unpool(b: GraphBuilder, g: SSAValue, places: SSAValue, shape: Sizes, spatial: int) -> SSAValue:
    """The gradient of max pooling: every element of `g` added to its place among the flattened spatial dimensions."""
    lead = shape[: len(shape) - spatial]
    flat = (*lead, product(b.tensor(g).shape[len(lead) :]))
    target = zeros(b, g, (*lead, product(shape[len(lead) :])))
    added = b.scatter(target, b.reshape(places, shape=flat), b.reshape(g, shape=flat), dim=len(lead), kind="add")
    return b.reshape(added, shape=shape)


@op("max_pool_indices", samples=_samples())
class MaxPoolIndices(Pool):
    """Where the greatest element of each window stands: its row-major position in the spatial dimensions.

    The first of equal elements counts; a NaN is greatest. Windows may not lie in the padding alone.
    """

    KIND: ClassVar[str] = "argmax"

    @classmethod
    def result(cls, dtype: DType) -> DType:
        return i64

    @staticmethod
    def reference(x: np.ndarray, window: tuple[int, ...], **geometry: Any) -> np.ndarray:
        lead = x.ndim - len(window)
        wide: np.ndarray = x.astype(np.float32) if x.dtype in NARROW else x
        counts: Any = window_counts("max_pool_indices", x.shape[lead:], window, **geometry)
        numbers = np.arange(int(np.prod(x.shape[lead:]))).reshape(x.shape[lead:])
        places = np.full((*x.shape[:lead], *counts), -1)
        best = np.zeros((*x.shape[:lead], *counts), wide.dtype)
        for (_, elements), (_, number) in zip(
            windows(wide, window, counts, **geometry, value=0),
            windows(numbers, window, counts, **geometry, value=-1),
            strict=True,
        ):
            first_nan = (elements != elements) & (best == best)
            better = (number >= 0) & ((places < 0) | (elements > best) | first_nan)
            best, places = np.where(better, elements, best), np.where(better, number, places)
        return places

    @staticmethod
    def element(
        body: Body,
        index: Sequence[Size],
        over: Sequence[Size],
        x: Operand,
        window: Sizes,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
    ) -> Value:
        lead = len(index) - len(over)
        place: list[Size] = []
        mask: Value | None = None
        for d, (start, skipped) in enumerate(_starts(index[lead:], strides, padding, dilation)):
            tap = over[d] + skipped
            place.append(start + tap * dilation[d])
            if padding[d] != (0, 0):
                mask = body.both(mask, body.inside(place[-1], x.tensor.shape[lead + d]))
                mask = body.both(mask, body.inside(tap, window[d]))
        return body.at(x, [*index[:lead], *place], mask, least(x.tensor.dtype))

    @staticmethod
    def finish(
        body: Body,
        value: Value,
        index: Sequence[Size],
        x: Operand,
        window: Sizes,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
    ) -> Value:
        lead = len(index) - len(window)
        tap = body.index(value, product(window))
        position: Size = 0
        steps = contiguous_strides(window)
        for d, (start, skipped) in enumerate(_starts(index[lead:], strides, padding, dilation)):
            own = mod(floordiv(tap, steps[d]), window[d])
            position = position * x.tensor.shape[lead + d] + start + (own + skipped) * dilation[d]
        return body.position(position, i64)


def _starts(index: Sequence[Size], strides: Sizes, padding: Padding, dilation: Sizes) -> list[tuple[Size, Size]]:
    """Where each window starts, and how many of its elements lie before the operand.

    Leaving those out makes the first element compared one of the operand's, so that among equals no padding wins.
    """
    starts = [i * stride - low for i, stride, (low, _) in zip(index, strides, padding, strict=True)]
    return [
        (start, 0 if low == 0 else maximum(ceildiv(-start, step), 0))
        for start, (low, _), step in zip(starts, padding, dilation, strict=True)
    ]
