"""The sum of windows where they overlap: what `windows` took apart, put together again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as every
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size
from weft.ir.types import DType, Tensor, bf16, f16, f32, f64
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values
from weft.ops.samples import Input, Sample
from weft.ops.windows.convolution import in_f32, spread_place
from weft.ops.windows.window import Padding, window_counts, window_slices

_DTYPES: tuple[DType, ...] = (f32, f64, bf16, f16)
Sizes = tuple[Size, ...]


def _sample(x: tuple[int, ...], shape: Sizes, strides: Sizes, padding: Padding, dilation: Sizes) -> Sample:
    params = {"shape": shape, "strides": strides, "padding": padding, "dilation": dilation}
    return Sample((Input(x, -2, 2),), params, _DTYPES)


@op(
    "fold",
    samples=[
        _sample((2, 3, 3, 4), (7,), (2,), ((0, 0),), (1,)),
        _sample((1, 3, 4, 3, 2, 3), (5, 6), (2, 1), ((1, 1), (0, 1)), (1, 3)),
        _sample((2, 2, 2, 1, 1, 1, 1, 5), (3, 2, 1), (2, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
        _sample((0, 3, 3, 2), (5,), (1,), ((0, 0),), (1,)),
    ],
)
class Fold(Reduction):
    """Add up windows [N, counts..., window..., C] at their places in [N, shape..., C], less the `padding`.

    Windows lie every `strides`, their elements `dilation` apart. Narrow floats are accumulated in f32.
    """

    KIND: ClassVar[str] = "sum"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape: Sizes = params["shape"]
        rank = len(shape)
        window = x.shape[1 + rank : -1]
        counts = window_counts("fold", shape, window, params["strides"], params["padding"], params["dilation"])
        if x.shape != (x.shape[0], *counts, *window, x.shape[-1]):
            raise ShapeError(
                f"fold: {x} are not the windows over {shape}", hint="the operand is [N, counts..., window..., C]"
            )
        return Tensor(x.dtype, (x.shape[0], *shape, x.shape[-1]))

    @staticmethod
    @rounded_once
    def reference(
        x: np.ndarray,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        dilation: tuple[int, ...],
    ) -> np.ndarray:
        rank = len(shape)
        counts, window = x.shape[1 : 1 + rank], x.shape[1 + rank : -1]
        padded = [size + low + high for size, (low, high) in zip(shape, padding, strict=True)]
        result = np.zeros((x.shape[0], *padded, x.shape[-1]), x.dtype)
        for tap in every(*map(range, window)):
            places = window_slices(tap, counts, strides, dilation)
            result[(slice(None), *places)] += x[(slice(None), *(slice(None) for _ in counts), *tap)]
        inner = (slice(low, low + size) for size, (low, _) in zip(shape, padding, strict=True))
        return result[(slice(None), *inner)]

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        shape: Sizes,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
    ) -> Gradients:
        window = b.tensor(operands[0]).shape[1 + len(shape) : -1]
        low, high = zip(*padding, strict=True)
        padded = b.pad(grads[0], low=(0, *low, 0), high=(0, *high, 0), value=0)
        return (b.windows(padded, window=window, strides=strides, dilation=dilation),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        size, rows, *rest = b.tensor(operands[0]).shape
        tall = b.fold(b.reshape(operands[0], shape=(size * rows, *rest)), **params)
        return b.reshape(tall, shape=(size, rows, *b.tensor(tall).shape[1:]))

    @staticmethod
    def ranges(x: Tensor, shape: Sizes, **params: Any) -> Sizes:
        return x.shape[1 + len(shape) : -1]

    @staticmethod
    def element(
        body: Body,
        index: Sequence[Size],
        over: Sequence[Size],
        x: Operand,
        shape: Sizes,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
    ) -> Value:
        row, *place, channel = index
        counts = x.tensor.shape[1 : 1 + len(shape)]
        position, mask = spread_place(body, place, over, counts, strides, padding, dilation)
        return in_f32(body, body.at(x, [row, *position, *over, channel], mask))

    @staticmethod
    def finish(body: Body, value: Value, index: Sequence[Size], x: Operand, **params: Any) -> Value:
        return value if value.dtype == x.tensor.dtype else body.cast(value, x.tensor.dtype)
