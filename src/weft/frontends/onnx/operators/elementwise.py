"""Arithmetic, comparisons, logic and activations: most are graph ops of the same meaning."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.operators.random import draws
from weft.frontends.onnx.operators.shapes import columns
from weft.frontends.onnx.operators.table import CONVERTERS, onnx_op, register
from weft.ir.types import f32
from weft.ops.base import REGISTRY, Elementwise, OpSpec
from weft.ops.graph import GraphBuilder


def operands(c: Call) -> list[SSAValue]:
    """The inputs, aligned by the rules of the version: before 7 the second one broadcasts from an `axis` on."""
    values = c.xs()
    if c.version < 7 and len(values) == 2 and c.flag("broadcast") and c.given("axis"):
        rank, inner = c.rank(0), c.shape(1)
        axis = c.axis(c.int("axis"), rank)
        values[1] = c.b.reshape(values[1], shape=(*inner, *(1 for _ in range(rank - axis - len(inner)))))
    return values


def scalar(b: GraphBuilder, x: SSAValue, number: float | int | bool) -> SSAValue:
    return b.full_like(x, number)


@onnx_op("Div")
def div(c: Call) -> Any:
    x, y = operands(c)
    return c.b.div(x, y) if c.b.tensor(x).dtype.is_float else c.b.truncdiv(x, y)


@onnx_op("Mod")
def mod(c: Call) -> Any:
    x, y = c.xs()
    return c.b.fmod(x, y) if c.flag("fmod") else c.b.remainder(x, y)


@onnx_op("Pow")
def power(c: Call) -> Any:
    x, y = operands(c)
    base, exponent = c.b.tensor(x).dtype, c.b.tensor(y).dtype
    if base == exponent:
        return c.b.pow(x, y)
    if not base.is_float and exponent.is_float:
        return c.b.cast(c.b.pow(c.b.cast(x, dtype=exponent), y), dtype=base)
    return c.b.pow(x, c.b.cast(y, dtype=base))


@onnx_op("Equal")
def equal(c: Call) -> Any:
    if c.dtype(0) == STRINGS:
        return c.host(lambda a, b: np.equal(a, b).astype(bool))
    return c.b.eq(*operands(c))


@onnx_op("BitShift")
def bit_shift(c: Call) -> Any:
    x, y = c.xs()
    return c.b.shl(x, y) if c.string("direction") == "LEFT" else c.b.shr(x, y)


@onnx_op("Max", "Min", "Sum", "Mean")
def variadic(c: Call) -> Any:
    names = {"Max": "maximum", "Min": "minimum"}
    first, *rest = c.xs()
    total = first
    for each in rest:
        total = c.b.emit(names.get(c.node.op, "add"), total, each)
    return c.b.div(total, scalar(c.b, total, len(rest) + 1)) if c.node.op == "Mean" else total


@onnx_op("Clip")
def clip(c: Call) -> Any:
    x = c.x(0)
    bounds = [("maximum", "min", 1), ("minimum", "max", 2)]
    for op, name, place in bounds:
        if c.version < 11:
            bound = scalar(c.b, x, c.float(name)) if c.given(name) else None
        else:
            bound = c.optional(place)
        if bound is not None:
            x = c.b.emit(op, x, c.b.reshape(bound, shape=()))
    return x


@onnx_op("IsInf")
def is_inf(c: Call) -> Any:
    x = c.x(0)
    either, zero = c.b.isinf(x), scalar(c.b, x, 0)
    negative, positive = c.flag("detect_negative", True), c.flag("detect_positive", True)
    if negative and positive:
        return either
    if not negative and not positive:
        return c.b.full(value=False, shape=c.shape(0), dtype=c.b.tensor(either).dtype)
    return c.b.logical_and(either, c.b.gt(x, zero) if positive else c.b.lt(x, zero))


@onnx_op("LeakyRelu")
def leaky_relu(c: Call) -> Any:
    return c.b.leaky_relu(c.x(0), slope=c.float("alpha", 0.01))


@onnx_op("PRelu")
def prelu(c: Call) -> Any:
    x, slope = c.xs()
    if c.version < 7 and c.rank(1) == 1:  # one number for each channel
        slope = columns(c, slope, c.rank(0) - 2)
    return c.b.where(c.b.lt(x, scalar(c.b, x, 0)), c.b.mul(x, slope), x)


@onnx_op("Elu")
def elu(c: Call) -> Any:
    return c.b.elu(c.x(0), alpha=c.float("alpha", 1.0))


@onnx_op("Selu")
def selu(c: Call) -> Any:
    alpha, gamma = (1.6732, 1.0507) if c.version < 6 else (1.67326319217681884765625, 1.05070102214813232421875)
    return c.b.elu(c.x(0), alpha=c.float("alpha", alpha), scale=c.float("gamma", gamma))


@onnx_op("Celu")
def celu(c: Call) -> Any:
    alpha = c.float("alpha", 1.0)
    return c.b.elu(c.x(0), alpha=alpha, input_scale=1 / alpha)


@onnx_op("Gelu")
def gelu(c: Call) -> Any:
    return c.b.gelu(c.x(0), approximate=c.string("approximate", "none"))


@onnx_op("HardSigmoid")
def hard_sigmoid(c: Call) -> Any:
    x = c.x(0)
    line = c.b.add(c.b.mul(x, scalar(c.b, x, c.float("alpha", 0.2))), scalar(c.b, x, c.float("beta", 0.5)))
    return c.b.clamp(line, low=0.0, high=1.0)


@onnx_op("Softplus")
def softplus(c: Call) -> Any:
    x = c.x(0)
    rest = c.b.log1p(c.b.exp(c.b.neg(c.b.abs(x))))
    return c.b.add(c.b.maximum(x, scalar(c.b, x, 0)), rest)


@onnx_op("Softsign")
def softsign(c: Call) -> Any:
    x = c.x(0)
    return c.b.div(x, c.b.add(c.b.abs(x), scalar(c.b, x, 1)))


@onnx_op("Swish")
def swish(c: Call) -> Any:
    x, alpha = c.x(0), c.float("alpha", 1.0)
    return c.b.silu(x) if alpha == 1.0 else c.b.mul(x, c.b.sigmoid(c.b.mul(x, scalar(c.b, x, alpha))))


@onnx_op("ThresholdedRelu")
def thresholded_relu(c: Call) -> Any:
    x = c.x(0)
    return c.b.where(c.b.gt(x, scalar(c.b, x, c.float("alpha", 1.0))), x, scalar(c.b, x, 0))


@onnx_op("Shrink")
def shrink(c: Call) -> Any:
    x, bias, edge = c.x(0), c.float("bias", 0.0), c.float("lambd", 0.5)
    wide = x if c.b.tensor(x).dtype.is_float else c.b.cast(x, dtype=f32)

    def number(value: float) -> SSAValue:
        return scalar(c.b, wide, value)

    below = c.b.where(c.b.lt(wide, number(-edge)), c.b.add(wide, number(bias)), number(0))
    result = c.b.where(c.b.gt(wide, number(edge)), c.b.sub(wide, number(bias)), below)
    return result if wide is x else c.b.cast(result, dtype=c.b.tensor(x).dtype)


@onnx_op("Dropout")
def dropout(c: Call) -> Any:
    x = c.x(0)
    training = c.has(2) and bool(c.known_scalar(2))
    ratio = float(c.known_scalar(1)) if c.has(1) else c.float("ratio", 0.5)
    mask_type = c.kernel_type(np.dtype(bool)) if c.version >= 10 else c.b.tensor(x).dtype
    if not training or ratio == 0:
        return x, c.b.full(value=1, shape=c.shape(0), dtype=mask_type)
    drawn = draws(c, c.shape(0))
    mask = c.b.ge(drawn, scalar(c.b, drawn, ratio))
    kept = c.b.mul(x, scalar(c.b, x, 1 / (1 - ratio) if ratio < 1 else math.inf))
    return c.b.where(mask, kept, scalar(c.b, x, 0)), c.b.cast(mask, dtype=mask_type)


@onnx_op("CumSum", "CumProd")
def cumulative(c: Call) -> Any:
    x, rank = c.x(0), c.rank(0)
    axis = c.axis(int(c.known_scalar(1)), rank)
    product = c.node.op == "CumProd"
    if c.flag("reverse"):
        x = _reversed(c, x, axis)
    made = c.b.cumprod(x, dim=axis) if product else c.b.cumsum(x, dim=axis)
    if c.flag("exclusive"):
        shape = c.shape(0)
        front = tuple(int(dim == axis) for dim in range(rank))
        moved = c.b.pad(made, low=front, high=(0,) * rank, value=int(product))
        made = c.b.slice(moved, starts=(0,) * rank, shape=shape, steps=(1,) * rank)
    return _reversed(c, made, axis) if c.flag("reverse") else made


def _reversed(c: Call, x: SSAValue, axis: int) -> SSAValue:
    shape = static(c.b.tensor(x))
    starts = tuple(max(size - 1, 0) if dim == axis else 0 for dim, size in enumerate(shape))
    return c.b.slice(x, starts=starts, shape=shape, steps=tuple(-1 if dim == axis else 1 for dim in range(len(shape))))


@onnx_op("Sqrt", "Exp", "Log", "Sin", "Cos")
def in_type(c: Call) -> Any:
    return c.b.emit(c.node.op.lower(), c.x(0))


@onnx_op("Round", "Floor", "Ceil")
def rounding(c: Call) -> Any:
    return c.b.emit(c.node.op.lower(), c.x(0))


def _elementwise(spec: OpSpec) -> Callable[[Call], Any]:
    return lambda c: c.b.emit(spec.name, *operands(c))


# All other elementwise ops whose class names an ONNX operator: the name is all there is to say.
for _spec in REGISTRY:
    if issubclass(_spec.cls, Elementwise):
        for _name in _spec.onnx:
            if ("", _name) not in CONVERTERS:
                register(_name, _elementwise(_spec))
