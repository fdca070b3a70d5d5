"""Writers of products, convolutions, reductions, pooling and attention."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.frontends.onnx.export.writer import Writer, require, writes
from weft.ir.types import boolean, f32, i8, i32, i64, u8
from weft.ops.base import GraphOp

_REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


@writes(*_REDUCTIONS)
def reduce(w: Writer, op: GraphOp) -> str:
    name = _REDUCTIONS[op.name.removeprefix("graph.")]
    if not op.params["dims"]:
        return w.add("Identity", w.x(op))
    made = w.add(name, w.x(op), w.ints(op.params["dims"]), keepdims=int(op.params["keep"]))
    wide = w.result(op).dtype
    return made if wide == w.tensor(op).dtype else w.add("Cast", made, to=w.element_type(wide, op))


@writes("any", "all")
def any_or_all(w: Writer, op: GraphOp) -> str:
    if not op.params["dims"]:
        return w.add("Identity", w.x(op))
    numbers = w.add("Cast", w.x(op), to=w.element_type(i32, op))
    name = "ReduceMax" if op.name == "graph.any" else "ReduceMin"
    made = w.add(name, numbers, w.ints(op.params["dims"]), keepdims=int(op.params["keep"]))
    return w.add("Greater", made, w.constant(0, np.int32))  # of no elements they are the least and greatest number


@writes("argmax", "argmin")
def arg_extreme(w: Writer, op: GraphOp) -> str:
    dims = op.params["dims"]
    require(op, len(dims) == 1, "over several dimensions")
    name = "ArgMax" if op.name == "graph.argmax" else "ArgMin"
    made = w.add(name, w.x(op), axis=dims[0], keepdims=int(op.params["keep"]))
    wide = w.result(op).dtype
    return made if wide == i64 else w.add("Cast", made, to=w.element_type(wide, op))


@writes("dot")
def dot(w: Writer, op: GraphOp) -> str:
    x, y, wide = w.x(op), w.x(op, 1), op.params.get("dtype")
    if wide is None:
        return w.add("MatMul", x, y)
    if wide == i32 and w.tensor(op).dtype in (i8, u8):
        return w.add("MatMulInteger", x, y)
    number = w.element_type(wide, op)
    return w.add("MatMul", w.add("Cast", x, to=number), w.add("Cast", y, to=number))


@writes("convolution")
def convolution(w: Writer, op: GraphOp) -> str:
    p = op.params
    require(op, "dtype" not in p, "of codes")
    numbers = [*p["strides"], *p["dilation"], *(each for pair in p["padding"] for each in pair), p["groups"]]
    require(op, all(isinstance(each, int) for each in numbers), "with parameters that are symbolic")
    require(op, all(each >= 0 for pair in p["padding"] for each in pair), "with negative padding")
    low, high = zip(*p["padding"], strict=True)
    geometry = {"strides": list(p["strides"]), "dilations": list(p["dilation"]), "pads": [*low, *high]}
    geometry["group"] = p["groups"]
    if p["transposed"]:
        return w.add("ConvTranspose", w.x(op), w.x(op, 1), output_padding=list(p["output_padding"]), **geometry)
    return w.add("Conv", w.x(op), w.x(op, 1), **geometry)


@writes("max_pool", "sum_pool")
def pool(w: Writer, op: GraphOp) -> str:
    p = op.params
    window, lead = p["window"], w.tensor(op).rank - len(p["window"])
    require(op, lead in (1, 2), "beside other dimensions than those of images and channels")
    low, high = zip(*p["padding"], strict=True)
    geometry = {"kernel_shape": list(window), "strides": list(p["strides"]), "pads": [*low, *high]}
    geometry["dilations"] = list(p["dilation"])
    x = w.x(op) if lead == 2 else w.add("Unsqueeze", w.x(op), w.ints([0]))
    if op.name == "graph.max_pool":
        made = w.add("MaxPool", x, **geometry)
    else:
        require(op, w.tensor(op).dtype.is_float, "of integers")
        mean = w.add("AveragePool", x, count_include_pad=1, **geometry)
        made = w.add("Mul", mean, w.constant(prod(window), w.tensor(op).dtype))
    return made if lead == 2 else w.add("Squeeze", made, w.ints([0]))


@writes("grid_sample")
def grid_sample(w: Writer, op: GraphOp) -> str:
    p = op.params
    corners = int(p["align_corners"])
    return w.add("GridSample", w.x(op), w.x(op, 1), mode=p["mode"], padding_mode=p["padding"], align_corners=corners)


@writes("attention")
def attention(w: Writer, op: GraphOp) -> str:
    """Scores, what is added to them or hidden, softmax, and the mean of values."""
    p, (q, k, v) = op.params, (w.x(op, place) for place in range(3))
    require(op, not p.get("sinks") and not p.get("undefined"), "with sinks, or rows without keys")
    rank, dtype = w.tensor(op).rank, w.tensor(op).dtype
    keys = w.add("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = w.add("Mul", w.add("MatMul", q, keys), w.constant(p["scale"], dtype))
    if softcap := p.get("softcap", 0.0):
        limit = w.constant(softcap, dtype)
        scores = w.add("Mul", w.add("Tanh", w.add("Div", scores, limit)), limit)
    least = w.constant(-np.inf, dtype)
    if len(op.operands) > 3:
        mask = w.x(op, 3)
        hides = w.tensor(op, 3).dtype == boolean
        scores = w.add("Where", mask, scores, least) if hides else w.add("Add", scores, mask)
    if p["causal"]:
        rows, columns = (w.tensor(op, place).shape[-2] for place in (0, 1))
        seen = w.add("Trilu", w.add("Expand", w.constant(1.0, f32), w.shape([rows, columns])), upper=0)
        scores = w.add("Where", w.add("Cast", seen, to=w.element_type(boolean, op)), scores, least)
    weights = w.add("Softmax", scores, axis=-1)
    if p["causal"] or len(op.operands) > 3:  # a row without any key gives zeros
        none = w.add("Equal", w.add("ReduceMax", scores, w.ints([-1]), keepdims=1), least)
        weights = w.add("Where", none, w.constant(0, dtype), weights)
    return w.add("MatMul", weights, v)
