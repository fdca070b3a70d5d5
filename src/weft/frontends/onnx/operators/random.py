"""Random numbers: uniform, normal and drawn from categories. Without a seed every import has its own."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.frontends.onnx.call import Call, NoRegion
from weft.frontends.onnx.operators.shapes import checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import i64


def draws(c: Call, shape: tuple[int, ...], more: int = 0) -> SSAValue:
    """Numbers in [0, 1); the seed is the node's, or another for each import."""
    if c.scope.in_region and not c.given("seed"):
        raise NoRegion  # every turn draws its own
    c.scope.repeatable &= c.given("seed")
    seed = hash(float(c.float("seed"))) & 0x7FFFFFFF if c.given("seed") else secrets.randbits(31)
    return c.b.uniform(c.b.full(value=seed + more, shape=(1,), dtype=i64), shape=checked_shape(c, shape))


@onnx_op("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random(c: Call) -> Any:
    like = c.node.op.endswith("Like")
    shape = c.shape(0) if like else c.ints("shape")
    default = c.dtype(0) if like else np.dtype(np.float32)
    dtype = c.kernel_type(c.numpy_type("dtype") if c.given("dtype") else default)
    made = draws(c, shape)
    b = c.b
    if "Normal" in c.node.op:
        # Box and Muller: a radius from one number, an angle from another.
        other = draws(c, shape, 1)
        radius = b.sqrt(b.mul(b.log1p(b.neg(made)), b.full_like(made, -2.0)))
        made = b.mul(radius, b.cos(b.mul(other, b.full_like(other, 2 * math.pi))))
        scale, start = c.float("scale", 1.0), c.float("mean", 0.0)
    else:
        start = c.float("low", 0.0)
        scale = c.float("high", 1.0) - start
    made = b.add(b.mul(made, b.full_like(made, scale)), b.full_like(made, start))
    return made if b.tensor(made).dtype == dtype else b.cast(made, dtype=dtype)


@onnx_op("Multinomial")
def multinomial(c: Call) -> Any:
    b, x = c.b, c.x(0)
    rows, classes = c.shape(0)
    count = c.int("sample_size", 1)
    dtype = c.kernel_type(c.numpy_type("dtype", 6))
    powers = b.exp(b.sub(x, b.max(x, dims=(1,), keep=True)))
    upto = b.cumsum(b.div(powers, b.sum(powers, dims=(1,), keep=True)), dim=1)
    drawn = draws(c, (rows, count, 1))
    drawn = drawn if b.tensor(drawn).dtype == b.tensor(x).dtype else b.cast(drawn, dtype=b.tensor(x).dtype)
    below = b.le(b.reshape(upto, shape=(rows, 1, classes)), drawn)
    place = b.sum(b.cast(below, dtype=i64), dims=(2,), keep=False)
    return b.cast(b.clamp(place, low=0, high=classes - 1), dtype=dtype)
