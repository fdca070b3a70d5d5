"""Numbers in few bits: quantization, and the products and convolutions of quantized tensors."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.dtypes import NUMBERS, kernel_dtype
from weft.frontends.onnx.model import Node
from weft.frontends.onnx.operators.matmul import product
from weft.frontends.onnx.operators.neural import convolved
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.rewrite import INTERNAL, Rewrite
from weft.ir.types import DType, f32, i32
from weft.ops.graph import GraphBuilder

_WIDER = {
    np.dtype(ml_dtypes.int4): np.dtype(np.int8),
    np.dtype(ml_dtypes.uint4): np.dtype(np.uint8),
    np.dtype(ml_dtypes.int2): np.dtype(np.int8),
    np.dtype(ml_dtypes.uint2): np.dtype(np.uint8),
    np.dtype(ml_dtypes.float8_e4m3fnuz): np.dtype(np.float32),
    np.dtype(ml_dtypes.float8_e5m2fnuz): np.dtype(np.float32),
    np.dtype(ml_dtypes.float8_e8m0fnu): np.dtype(np.float32),
    np.dtype(ml_dtypes.float4_e2m1fn): np.dtype(np.float32),
    np.dtype(ml_dtypes.float6_e2m3fn): np.dtype(np.float32),
    np.dtype(ml_dtypes.float6_e3m2fn): np.dtype(np.float32),
}
"""Types that are stored only, and the ones that kernels read them as."""


def widened_inputs(c: Call, places: tuple[int, ...]) -> Rewrite | None:
    """The node with inputs of stored types converted on the host before it; None if there are none."""
    narrow = [place for place in places if c.has(place) and kernel_dtype(c.dtype(place)) is None]
    if not narrow:
        return None
    inputs, casts = list(c.node.inputs), list[Node]()
    for place in narrow:
        name = f"{c.node.inputs[place]}\0wide"
        wider = _WIDER.get(c.dtype(place))
        if wider is None:
            raise c.unsupported(f"input {place} is {c.dtype(place)}, expected numbers")
        casts.append(Node("Cast", "", (c.node.inputs[place],), (name,), {"to": NUMBERS[wider]}, c.node.name))
        inputs[place] = name
    return Rewrite([*casts, replace(c.node, inputs=tuple(inputs))])


def spread(c: Call, value: SSAValue, shape: tuple[int, ...], axis: int, block: int) -> SSAValue:
    """Factors for a tensor of `shape`: one, one for each place along an axis, or one for each block along it."""
    sizes = static(c.b.tensor(value))
    if not sizes or (len(sizes) == 1 and sizes[0] == 1 and not block):
        return c.b.reshape(value, shape=())
    axis = c.axis(axis, len(shape))
    if not block:
        return c.b.reshape(value, shape=tuple(size if d == axis else 1 for d, size in enumerate(shape)))
    if len(sizes) != len(shape) or sizes[axis] != -(-shape[axis] // block):
        raise ShapeError(f"{c.node}: factors are {list(sizes)} for {list(shape)} in blocks of {block}")
    split = (*sizes[: axis + 1], 1, *sizes[axis + 1 :])
    wide = (*sizes[: axis + 1], block, *sizes[axis + 1 :])
    repeated = c.b.broadcast(c.b.reshape(value, shape=split), shape=wide)
    whole = c.b.reshape(repeated, shape=tuple(size * block if d == axis else size for d, size in enumerate(sizes)))
    return c.b.slice(whole, starts=(0,) * len(shape), shape=shape, steps=(1,) * len(shape))


@onnx_op("DequantizeLinear")
def dequantize_linear(c: Call) -> Any:
    rewritten = widened_inputs(c, (0, 1, 2))
    if rewritten is not None:
        return rewritten
    x, scale, shape = c.x(0), c.x(1), c.shape(0)
    axis, block = c.int("axis", 1), c.int("block_size", 0)
    dtype = c.b.tensor(scale).dtype
    if c.int("output_dtype", 0):
        dtype = c.kernel_type(c.numpy_type("output_dtype"))
    wide = _number(c.b, x, f32)
    if c.has(2):
        zero = c.x(2)
        if c.b.tensor(x).dtype.is_integer:
            whole = c.b.cast(x, dtype=i32) if c.b.tensor(x).dtype != i32 else x
            offset = spread(c, c.b.cast(zero, dtype=i32) if c.b.tensor(zero).dtype != i32 else zero, shape, axis, block)
            wide = c.b.cast(c.b.sub(whole, offset), dtype=f32)
        else:
            wide = c.b.sub(wide, spread(c, _number(c.b, zero, f32), shape, axis, block))
    made = c.b.mul(wide, spread(c, _number(c.b, scale, f32), shape, axis, block))
    return _number(c.b, made, dtype)


def _number(b: GraphBuilder, x: SSAValue, dtype: DType) -> SSAValue:
    return x if b.tensor(x).dtype == dtype else b.cast(x, dtype=dtype)


@onnx_op("QuantizeLinear")
def quantize_linear(c: Call) -> Any:
    if c.has(2):
        dtype = c.dtype(2)
    elif c.int("output_dtype", 0):
        dtype = c.numpy_type("output_dtype")
    else:
        dtype = np.dtype(np.uint8)
    if kernel_dtype(dtype) is None:
        # Rounded and limited by a kernel in a wider type, and packed on the host.
        wide = f"{c.node.outputs[0]}\0wide"
        attributes = {**c.node.attributes, "stored": NUMBERS[dtype]}
        inner = replace(c.node, op="Quantize", domain=INTERNAL, outputs=(wide,), attributes=attributes)
        return Rewrite([inner, Node("Cast", "", (wide,), c.node.outputs, {"to": NUMBERS[dtype]}, c.node.name)])
    return _quantized(c, dtype)


@onnx_op("Quantize", domain=INTERNAL)
def quantize_stored(c: Call) -> Any:
    return widened_inputs(c, (1, 2)) or _quantized(c, c.numpy_type("stored"))


def _quantized(c: Call, dtype: np.dtype) -> Any:
    x, scale, shape = c.x(0), c.x(1), c.shape(0)
    axis, block = c.int("axis", 1), c.int("block_size", 0)
    made = kernel_dtype(dtype) or c.kernel_type(_WIDER[dtype])
    quotient = c.b.div(_number(c.b, x, f32), spread(c, _number(c.b, scale, f32), shape, axis, block))
    zero = spread(c, _number(c.b, c.x(2), f32), shape, axis, block) if c.has(2) else None
    if not made.is_integer:
        whole = quotient if zero is None else c.b.add(quotient, zero)
        limit = float(ml_dtypes.finfo(dtype).max)
        return _number(c.b, c.b.clamp(whole, low=-limit, high=limit), made)
    whole = c.b.round(quotient)
    whole = whole if zero is None else c.b.add(whole, zero)
    return _saturated(c, whole, dtype, made)


def _saturated(c: Call, whole: SSAValue, dtype: np.dtype, made: DType) -> SSAValue:
    """Whole numbers in an integer type, kept inside its range."""
    about = ml_dtypes.iinfo(dtype)
    return c.b.cast(c.b.clamp(whole, low=float(about.min), high=float(about.max)), dtype=made)


def shifted(c: Call, place: int, zero: int, axis: int | None = None) -> SSAValue:
    """Codes less their zero, as 32-bit integers; zeros of several stand along an axis."""
    x = c.b.cast(c.x(place), dtype=i32)
    if not c.has(zero):
        return x
    offset = c.b.cast(c.x(zero), dtype=i32)
    sizes = static(c.b.tensor(offset))
    if len(sizes) == 1 and sizes[0] > 1 and axis is not None:
        rank = c.rank(place)
        axis = axis % rank
        offset = c.b.reshape(offset, shape=tuple(sizes[0] if d == axis else 1 for d in range(rank)))
    elif len(sizes) <= 1:
        offset = c.b.reshape(offset, shape=())
    return c.b.sub(x, offset)


@onnx_op("MatMulInteger")
def matmul_integer(c: Call) -> Any:
    return product(c, shifted(c, 0, 2, -2), shifted(c, 1, 3, -1))


@onnx_op("QLinearMatMul")
def qlinear_matmul(c: Call) -> Any:
    total = product(c, shifted(c, 0, 2, -2), shifted(c, 3, 5, -1))
    left, right = _number(c.b, c.x(1), f32), _number(c.b, c.x(4), f32)
    if len(static(c.b.tensor(left))) == 1 and static(c.b.tensor(left))[0] > 1:
        left = c.b.reshape(left, shape=(*static(c.b.tensor(left)), 1))
    return _requantized(c, total, c.b.mul(left, right), 6, 7)


def _requantized(c: Call, total: SSAValue, scale: SSAValue, out_scale: int, out_zero: int) -> SSAValue:
    factor = c.b.div(scale, _number(c.b, c.x(out_scale), f32))
    whole = c.b.round(c.b.mul(c.b.cast(total, dtype=f32), factor))
    dtype = c.dtype(out_zero)
    whole = c.b.add(whole, _number(c.b, c.x(out_zero), f32))
    return _saturated(c, whole, dtype, c.kernel_type(dtype))


@onnx_op("ConvInteger")
def conv_integer(c: Call) -> Any:
    return convolved(c, shifted(c, 0, 2), shifted(c, 1, 3, 0))


@onnx_op("QLinearConv")
def qlinear_conv(c: Call) -> Any:
    total = convolved(c, shifted(c, 0, 2), shifted(c, 3, 5, 0))
    spatial = c.rank(0) - 2
    if c.has(8):
        bias = c.x(8)
        total = c.b.add(total, c.b.reshape(bias, shape=(*static(c.b.tensor(bias)), *(1 for _ in range(spatial)))))
    left, right = c.b.reshape(_number(c.b, c.x(1), f32), shape=()), _number(c.b, c.x(4), f32)
    sizes = static(c.b.tensor(right))
    right = (
        c.b.reshape(right, shape=(sizes[0], *(1 for _ in range(spatial))))
        if sizes and sizes[0] > 1
        else (c.b.reshape(right, shape=()))
    )
    return _requantized(c, total, c.b.mul(left, right), 6, 7)
