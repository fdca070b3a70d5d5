"""Convolution over one to three spatial dimensions, and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, cast

import numpy as np
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import OpResult, SSAValue

from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.ir.expr import Size, floordiv, mod
from weft.ir.types import DType, Tensor, bf16, f16, f32, f64, i8, i32, i64, u8
from weft.ops.base import Precision, Reduction, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, all_batched
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, einsum
from weft.ops.windows.window import Padding, window_counts, window_place, window_slices, windows

BY_WEIGHTS = "weft.by_weights"
"""The annotation of a convolution that is the gradient of another by its weights."""
_DTYPES: tuple[DType, ...] = (f32, f64, bf16, f16)


def plain_params(rank: int = 2) -> dict[str, Any]:
    """The parameters of a convolution over so many spatial dimensions, one step at a time and without padding."""
    return {
        "strides": (1,) * rank,
        "padding": ((0, 0),) * rank,
        "dilation": (1,) * rank,
        "groups": 1,
        "transposed": False,
        "output_padding": (0,) * rank,
    }


def _sample(
    x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], padding: Padding, **others: Any
) -> Sample:
    params = plain_params(len(strides)) | {"strides": strides, "padding": padding, **others}
    return Sample((Input(x, -2, 2), Input(w, -2, 2)), params, _DTYPES)


def _codes_sample(dtype: DType, fill: int) -> Sample:
    low, high = (0, 256) if dtype == u8 else (-128, 127)
    params = plain_params() | {"padding": ((1, 0), (1, 2)), "dtype": i32, "fill": fill}
    return Sample((Input((2, 3, 5, 4), low, high, dtype), Input((4, 3, 3, 3), -128, 127, i8)), params, (i8,))


def _apart_sample(fill: int) -> Sample:
    params = plain_params() | {"padding": ((1, 1), (0, 2)), "groups": 4, "dtype": f32, "fill": fill}
    return Sample((Input((2, 4, 5, 4), 0, 256, u8), Input((4, 1, 3, 3), 0.25, 2, f32)), params, (i8,))


@op(
    "convolution",
    stablehlo="convolution",
    samples=[
        _sample((2, 3, 9), (4, 3, 3), (1,), ((1, 1),)),
        _sample((1, 4, 7, 6), (6, 2, 3, 2), (2, 1), ((1, 0), (0, 1)), dilation=(1, 2), groups=2),
        _sample((2, 3, 5, 5), (3, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), groups=3),
        _sample((2, 4, 3, 5), (5, 4, 1, 1), (1, 1), ((0, 0), (0, 0))),
        _sample((1, 2, 4, 5, 3), (2, 2, 2, 3, 2), (2, 2, 1), ((1, 1), (0, 0), (0, 1))),
        _sample((0, 3, 9), (4, 3, 3), (1,), ((0, 0),)),
        _sample((2, 4, 5), (4, 3, 3), (2,), ((1, 1),), transposed=True, output_padding=(1,)),
        _sample(
            *((1, 4, 3, 4), (4, 2, 2, 3), (2, 3), ((0, 1), (2, 1))),
            **{"dilation": (2, 1), "groups": 2, "transposed": True, "output_padding": (1, 2)},
        ),
        _sample((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), (1, 2, 1), ((0, 0), (0, 0), (1, 0)), transposed=True),
        _codes_sample(i8, -7),
        _codes_sample(u8, 131),
        _apart_sample(131),
    ],
)
class Convolution(Reduction):
    """Slide weights [O, C / groups, ...] over [N, C, ...]: each result is the sum of a window times weights.

    Channels fall into `groups` that do not mix. `padding` has the zeros before and after each spatial dimension. If
    `transposed`, the weights are [C, O / groups, ...], and it is the gradient of the plain convolution: every element
    is spread over a window, `padding` is taken off, and `output_padding` tells which of the sizes that the plain one
    maps to this one is meant. Narrow floats are accumulated in f32. With `dtype` i32, codes of i8 or u8 and weights of
    i8 are multiplied and summed in that type, and the padding is made of `fill`, the code of zero; with `dtype` f32,
    the weights are of f32.
    """

    AUTOCAST: ClassVar[Precision] = "narrow"

    KIND: ClassVar[str] = "sum"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, w = tensors
        dtype = params.get("dtype")
        if dtype is None:
            dtype = same_dtype("convolution", tensors)
        elif (dtype, w.dtype) not in ((i32, i8), (f32, f32)) or x.dtype not in (i8, u8) or params["transposed"]:
            raise DTypeError(
                f"convolution of {x.dtype} and {w.dtype} has no result of {dtype}",
                hint="i8 or u8 with i8 have one of i32, with f32 one of f32, unless transposed; cast the operands",
            )
        strides, padding, dilation = params["strides"], params["padding"], params["dilation"]
        groups: Size = params["groups"]
        rank = len(strides)
        if isinstance(groups, int) and groups < 1:
            raise ShapeError(f"convolution: {groups} groups, expected at least 1")
        inputs, outputs = (
            (w.shape[0], w.shape[1] * groups) if params["transposed"] else (w.shape[1] * groups, w.shape[0])
        )
        if not x.rank == w.rank == rank + 2 or x.shape[1] != inputs or mod(outputs, groups) != 0:
            raise ShapeError(
                f"convolution: {x} and the weights {w} in {groups} groups do not fit",
                hint="channels are the operand's second dimension, and groups must divide them",
            )
        if not params["transposed"]:
            counts = window_counts("convolution", x.shape[2:], w.shape[2:], strides, padding, dilation)
            return Tensor(dtype, (x.shape[0], outputs, *counts))
        if any(isinstance(each, int) and each < 1 for each in (*strides, *dilation)):
            raise ShapeError(f"convolution: strides {strides} and dilation {dilation}, expected at least 1 each")
        spread = [
            (size - 1) * stride - low - high + step * (extent - 1) + 1 + extra
            for size, extent, stride, (low, high), step, extra in zip(
                x.shape[2:], w.shape[2:], strides, padding, dilation, params["output_padding"], strict=True
            )
        ]
        return Tensor(dtype, (x.shape[0], outputs, *spread))

    @staticmethod
    def contracted(x: Tensor, w: Tensor, transposed: bool, **params: Any) -> tuple[tuple[int, ...], ...]:
        spatial = tuple(range(2, x.rank))
        return (1, *spatial), (0 if transposed else 1, *spatial)

    @staticmethod
    def sharding(x: Tensor, w: Tensor, groups: Size, transposed: bool, **params: Any) -> ShardingRule:
        """Images split, and channels unless they are in groups."""
        rest = "." * (x.rank - 2)
        if groups != 1:
            return einsum(f"n.{rest},..{rest}->n.{rest}", (x, w))
        return einsum(f"nc{rest},{'co' if transposed else 'oc'}{rest}->no{rest}", (x, w))

    @staticmethod
    @rounded_once
    def reference(
        x: np.ndarray,
        w: np.ndarray,
        strides: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        dilation: tuple[int, ...],
        groups: int,
        transposed: bool,
        output_padding: tuple[int, ...],
        dtype: DType | None = None,
        fill: int = 0,
    ) -> np.ndarray:
        geometry = (strides, padding, dilation, groups)
        if dtype is not None:
            x = np.pad(x.astype(dtype.numpy), ((0, 0), (0, 0), *padding), constant_values=fill)
            w, geometry = w.astype(dtype.numpy), (strides, ((0, 0),) * len(strides), dilation, groups)
        return _spread(x, w, *geometry, output_padding) if transposed else _slide(x, w, *geometry)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        strides: tuple[Size, ...],
        padding: Padding,
        dilation: tuple[Size, ...],
        groups: Size,
        transposed: bool,
        output_padding: tuple[Size, ...],
        dtype: DType | None = None,
        fill: int = 0,
    ) -> Gradients:
        if dtype is not None:
            raise UnsupportedError("a convolution that widens has no gradient", hint="cast the operands first")
        (g,), (x, w) = grads, operands
        geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        none = (0,) * len(strides)
        shape = b.tensor(x).shape
        if transposed:
            back = b.convolution(g, w, **geometry, transposed=False, output_padding=none)
            if b.tensor(back).shape != shape:
                back = b.slice(back, starts=(0,) * len(shape), shape=shape, steps=(1,) * len(shape))
            return back, _weight_gradient(b, g, x, w, strides, padding, dilation, groups)
        params = {**geometry, "transposed": True, "output_padding": none}
        least = Convolution.infer(b.tensor(g), b.tensor(w), **params).shape
        missing = tuple(size - reached for size, reached in zip(shape[2:], least[2:], strict=True))
        back = b.convolution(g, w, **(params | {"output_padding": missing}))
        return back, _weight_gradient(b, x, g, w, strides, padding, dilation, groups)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], groups: Size, **params: Any) -> SSAValue:
        x, w = operands
        if not batched[1]:
            size, rows, *rest = b.tensor(x).shape
            tall = b.convolution(b.reshape(x, shape=(size * rows, *rest)), w, groups=groups, **params)
            return b.reshape(tall, shape=(size, rows, *b.tensor(tall).shape[1:]))
        # Every member of the batch becomes a group of channels.
        x, w = all_batched(b, operands, batched)
        size, rows, channels, *spatial = b.tensor(x).shape
        wide = b.reshape(swapped(b, x, 0, 1), shape=(rows, size * channels, *spatial))
        _, first, *kernel = b.tensor(w).shape
        y = b.convolution(wide, b.reshape(w, shape=(size * first, *kernel)), groups=size * groups, **params)
        _, outputs, *counts = b.tensor(y).shape
        return swapped(b, b.reshape(y, shape=(rows, size, floordiv(outputs, size), *counts)), 0, 1)

    @staticmethod
    def ranges(x: Tensor, w: Tensor, groups: Size, **params: Any) -> tuple[Size, ...]:
        return floordiv(x.shape[1], groups), *w.shape[2:]

    @staticmethod
    def element(
        body: Body,
        index: Sequence[Size],
        over: Sequence[Size],
        x: Operand,
        w: Operand,
        strides: tuple[Size, ...],
        padding: Padding,
        dilation: tuple[Size, ...],
        groups: Size,
        transposed: bool,
        output_padding: tuple[Size, ...],
        dtype: DType | None = None,
        fill: int = 0,
    ) -> Value:
        (row, output, *place), (channel, *tap) = index, over
        channels, sizes = floordiv(x.tensor.shape[1], groups), x.tensor.shape[2:]
        outputs = w.tensor.shape[1] if transposed else floordiv(w.tensor.shape[0], groups)
        group = 0 if groups == 1 else floordiv(output, outputs)
        source = group * channels + channel
        if transposed:
            position, mask = spread_place(body, place, tap, sizes, strides, padding, dilation)
            weight = [source, output - group * outputs, *tap]
        else:
            position, mask = window_place(body, place, tap, sizes, strides, padding, dilation)
            weight = [output, channel, *tap]
        if dtype is not None:
            code = body.at(x, [row, source, *position], mask, fill)
            return body.math("mul", body.cast(code, dtype), body.cast(body.at(w, weight), dtype))
        return body.math(
            "mul", in_f32(body, body.at(x, [row, source, *position], mask)), in_f32(body, body.at(w, weight))
        )

    @staticmethod
    def finish(body: Body, value: Value, index: Sequence[Size], x: Operand, w: Operand, **params: Any) -> Value:
        made = params.get("dtype") or x.tensor.dtype
        return value if value.dtype == made else body.cast(value, made)


def in_f32(body: Body, value: Value) -> Value:
    """The value in f32 if its type is a narrower float, so that products and sums of it are rounded once."""
    return body.cast(value, f32) if value.dtype.is_float and value.dtype.bits < 32 else value


def swapped(b: GraphBuilder, x: SSAValue, first: int, second: int) -> SSAValue:
    """Two dimensions exchanged."""
    dims = list(range(b.tensor(x).rank))
    dims[first], dims[second] = second, first
    return b.permute(x, dims=tuple(dims))


def spread_place(
    body: Body,
    index: Sequence[Size],
    over: Sequence[Size],
    sizes: Sequence[Size],
    strides: Sequence[Size],
    padding: Padding,
    dilation: Sequence[Size],
) -> tuple[list[Size], Value | None]:
    """The element whose window has its element `over` at `index`, and whether there is one."""
    place: list[Size] = []
    mask: Value | None = None
    for i, k, size, stride, (low, _), step in zip(index, over, sizes, strides, padding, dilation, strict=True):
        distance = i + low - k * step
        place.append(floordiv(distance, stride))
        mask = body.both(mask, body.inside(place[-1], size))
        if stride != 1:
            rest = body.position(mod(distance, stride), i64)
            mask = body.both(mask, body.math("eq", rest, body.constant(0, i64)))
    return place, mask


def _weight_gradient(
    b: GraphBuilder,
    wide: SSAValue,
    narrow: SSAValue,
    w: SSAValue,
    strides: tuple[Size, ...],
    padding: Padding,
    dilation: tuple[Size, ...],
    groups: Size,
) -> SSAValue:
    """The gradient of the weights between a `wide` tensor, which windows lie on, and a `narrow` one with one element
    for each window: a convolution in which the narrow one is the weights, and the rows of both are its channels."""
    wide, padding = _reached(b, wide, narrow, w, strides, padding, dilation)
    rows, channels, *spatial = b.tensor(wide).shape
    per_group = floordiv(channels, groups)
    split = b.reshape(wide, shape=(rows, groups, per_group, *spatial))
    by_channel = b.reshape(swapped(b, split, 0, 2), shape=(per_group, groups * rows, *spatial))
    taps = b.convolution(
        by_channel,
        swapped(b, narrow, 0, 1),
        strides=dilation,
        padding=padding,
        dilation=strides,
        groups=groups,
        transposed=False,
        output_padding=(0,) * len(strides),
    )
    cast(OpResult, taps).op.attributes[BY_WEIGHTS] = UnitAttr()
    shape = b.tensor(w).shape
    reached = (per_group, shape[0], *shape[2:])
    if b.tensor(taps).shape != reached:
        taps = b.slice(taps, starts=(0,) * len(shape), shape=reached, steps=(1,) * len(shape))
    return swapped(b, taps, 0, 1)


def _reached(
    b: GraphBuilder,
    wide: SSAValue,
    narrow: SSAValue,
    w: SSAValue,
    strides: tuple[Size, ...],
    padding: Padding,
    dilation: tuple[Size, ...],
) -> tuple[SSAValue, Padding]:
    """What windows reach of a tensor and of its padding: a stride may leave some of its end out."""
    shape = b.tensor(wide).shape
    sizes = (*shape[2:], *b.tensor(narrow).shape[2:], *b.tensor(w).shape[2:], *strides, *dilation)
    if not all(isinstance(size, int) for size in (*sizes, *(low for low, _ in padding))):
        return wide, padding
    high = [
        step * (extent - 1) + stride * (count - 1) + 1 - size - low
        for size, count, extent, stride, step, (low, _) in zip(
            shape[2:], b.tensor(narrow).shape[2:], b.tensor(w).shape[2:], strides, dilation, padding, strict=True
        )
    ]
    kept = tuple(size + min(extra, 0) for size, extra in zip(shape[2:], high, strict=True))
    if kept != shape[2:]:
        ones = (1,) * len(shape)
        wide = b.slice(wide, starts=(0,) * len(shape), shape=(*shape[:2], *kept), steps=ones)
    return wide, tuple((low, max(extra, 0)) for (low, _), extra in zip(padding, high, strict=True))


def _slide(
    x: np.ndarray,
    w: np.ndarray,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
) -> np.ndarray:
    rows, channels, *sizes = x.shape
    counts: Any = window_counts("convolution", sizes, w.shape[2:], strides, padding, dilation)
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    result = np.zeros((rows, w.shape[0], *counts), x.dtype)
    for over, elements in windows(x, w.shape[2:], counts, strides, padding, dilation, 0):
        columns = elements.reshape(rows, groups, channels // groups, prod(counts))
        result += np.matmul(weights[(..., *over)], columns).reshape(result.shape)
    return result


def _spread(
    x: np.ndarray,
    w: np.ndarray,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    output_padding: tuple[int, ...],
) -> np.ndarray:
    rows, channels, *sizes = x.shape
    kernel = w.shape[2:]
    reach = [
        (size - 1) * stride + step * (extent - 1) + 1 + extra
        for size, stride, step, extent, extra in zip(sizes, strides, dilation, kernel, output_padding, strict=True)
    ]
    weights = np.swapaxes(w.reshape(groups, w.shape[0] // groups, *w.shape[1:]), 1, 2)
    columns = x.reshape(rows, groups, channels // groups, prod(sizes))
    result = np.zeros((rows, groups * w.shape[1], *reach), x.dtype)
    for over in np.ndindex(*kernel):
        part = np.matmul(weights[(..., *over)], columns)
        result[(..., *window_slices(over, sizes, strides, dilation))] += part.reshape(*result.shape[:2], *sizes)
    inner = (slice(low, size - high) for (low, high), size in zip(padding, reach, strict=True))
    return result[(..., *inner)]
