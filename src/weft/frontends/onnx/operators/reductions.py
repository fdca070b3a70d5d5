"""Reductions over dimensions: sums, extremes and norms, their places, and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import boolean, i64
from weft.ops import composites
from weft.ops.composites import narrowed, widened


def _reduced(c: Call) -> tuple[int, ...] | None:
    """The dimensions that are reduced; None where there are none to reduce."""
    rank = c.rank(0)
    if c.version >= (13 if c.node.op == "ReduceSum" else 18):
        axes = c.known_ints(1) if c.has(1) else ()
    else:
        axes = c.ints("axes", ())
    if not axes:
        return None if c.flag("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted(c.axes(axes, rank)))


@onnx_op(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduce(c: Call) -> Any:
    kind = c.node.op.removeprefix("Reduce")
    x, dims, keep = c.x(0), _reduced(c), c.flag("keepdims", True)
    dtype = c.b.tensor(x).dtype
    wide = widened(c.b, x) if kind not in ("Max", "Min") else x
    if kind == "L1":
        wide = c.b.abs(wide)
    elif kind in ("L2", "SumSquare"):
        wide = c.b.mul(wide, wide)
    if dims is None or not dims:
        total = wide if kind != "LogSumExp" else c.b.exp(wide)
    elif kind in ("Max", "Min"):
        total = _extreme(c, x, dims, keep, kind)
    elif kind == "Mean":
        total = c.b.sum(wide, dims=dims, keep=keep)
        count = c.b.full_like(total, math.prod(c.shape(0)[d] for d in dims))
        total = c.b.div(total, count) if dtype.is_float else c.b.truncdiv(total, count)
    elif kind == "LogSumExp":
        if math.prod(c.shape(0)[d] for d in dims):
            if not dtype.is_float:
                raise c.unsupported("logarithms of integers are not defined")
            return narrowed(c.b, composites.logsumexp(c.b, wide, dims, keep), dtype)
        total = c.b.sum(wide, dims=dims, keep=keep)
    elif kind == "Prod":
        total = c.b.prod(wide, dims=dims, keep=keep)
    else:
        total = c.b.sum(wide, dims=dims, keep=keep)
    if kind == "L2":
        total = c.b.sqrt(total) if dtype.is_float else c.b.cast(_root(c, total), dtype=dtype)
    elif kind in ("LogSum", "LogSumExp"):
        total = c.b.log(total)
    return narrowed(c.b, total, dtype)


def _root(c: Call, total: SSAValue) -> SSAValue:
    return c.b.sqrt(c.b.cast(total, dtype=c.kernel_type(np.dtype(np.float64))))


def _extreme(c: Call, x: SSAValue, dims: tuple[int, ...], keep: bool, kind: str) -> SSAValue:
    dtype, shape = c.b.tensor(x).dtype, c.shape(0)
    if math.prod(shape[d] for d in dims) == 0:
        sizes = tuple(1 if d in dims else size for d, size in enumerate(shape) if keep or d not in dims)
        if dtype == boolean:
            number: Any = kind == "Min"
        elif dtype.is_float:
            number = -math.inf if kind == "Max" else math.inf
        else:
            number = int(np.iinfo(dtype.numpy).min if kind == "Max" else np.iinfo(dtype.numpy).max)
        return c.b.full(value=number, shape=sizes, dtype=dtype)
    if dtype == boolean:
        return c.b.any(x, dims=dims, keep=keep) if kind == "Max" else c.b.all(x, dims=dims, keep=keep)
    return c.b.max(x, dims=dims, keep=keep) if kind == "Max" else c.b.min(x, dims=dims, keep=keep)


@onnx_op("ArgMax", "ArgMin")
def argument(c: Call) -> Any:
    axis, keep = c.axis(c.int("axis", 0), c.rank(0)), c.flag("keepdims", True)
    name = c.node.op.lower()
    x, size = c.x(0), c.shape(0)[axis]
    if not c.flag("select_last_index"):
        found = c.b.emit(name, x, dims=(axis,), keep=keep)
        return c.b.cast(found, dtype=i64) if c.b.tensor(found).dtype != i64 else found
    shape = c.shape(0)
    starts = tuple(size - 1 if d == axis else 0 for d in range(len(shape)))
    back = c.b.slice(x, starts=starts, shape=shape, steps=tuple(-1 if d == axis else 1 for d in range(len(shape))))
    found = c.b.emit(name, back, dims=(axis,), keep=keep)
    found = c.b.cast(found, dtype=i64) if c.b.tensor(found).dtype != i64 else found
    return c.b.sub(c.b.full_like(found, size - 1), found)


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def softmax(c: Call) -> Any:
    x, shape = c.x(0), c.shape(0)
    if c.version >= 13:
        return _along(c, x, c.axis(c.int("axis", -1), len(shape)))
    # Before 13 all dimensions from the axis on are one.
    axis = c.axis(c.int("axis", 1), len(shape))
    flat = c.b.reshape(x, shape=(math.prod(shape[:axis]), math.prod(shape[axis:])))
    return c.b.reshape(_along(c, flat, 1), shape=shape)


def _along(c: Call, x: SSAValue, axis: int) -> SSAValue:
    if c.node.op == "Softmax":
        return composites.softmax(c.b, x, axis)
    if c.node.op == "LogSoftmax":
        return composites.log_softmax(c.b, x, axis)
    greatest = c.b.argmax(x, dims=(axis,), keep=True)
    shape = static(c.b.tensor(x))
    places = c.b.iota(shape=shape, dim=axis, dtype=c.b.tensor(greatest).dtype)
    return c.b.cast(c.b.eq(places, greatest), dtype=c.b.tensor(x).dtype)
