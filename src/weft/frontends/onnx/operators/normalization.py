"""Normalization by statistics: of batches, layers, instances, groups and neighbouring channels."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.shapes import columns
from weft.frontends.onnx.operators.table import onnx_op
from weft.ops import composites
from weft.ops.composites import narrowed, widened


@onnx_op("BatchNormalization")
def batch_normalization(c: Call) -> Any:
    x, scale, bias, mean, variance = (c.x(place) for place in range(5))
    eps = c.float("epsilon", 1e-5)
    training = c.flag("training_mode") if c.version >= 14 else len([o for o in c.node.outputs if o]) > 1
    if not training:
        return composites.batch_norm(c.b, x, scale, bias, mean, variance, eps)
    dims = (0, *range(2, c.rank(0)))
    wide = widened(c.b, x)
    var, center = composites.var_mean(c.b, wide, dims, keep=False, correction=0)
    made = composites.batch_norm(c.b, x, scale, bias, center, var, eps)
    momentum = c.float("momentum", 0.9)

    def running(old: SSAValue, new: SSAValue) -> SSAValue:
        dtype = c.b.tensor(old).dtype
        kept = c.b.mul(widened(c.b, old), c.b.full_like(widened(c.b, old), momentum))
        added = c.b.mul(new, c.b.full_like(new, 1 - momentum))
        return narrowed(c.b, c.b.add(kept, narrowed(c.b, added, c.b.tensor(kept).dtype)), dtype)

    return made, running(mean, center), running(variance, var)


@onnx_op("LayerNormalization")
def layer_normalization(c: Call) -> Any:
    rank = c.rank(0)
    dims = tuple(range(c.axis(c.int("axis", -1), rank), rank))
    made, mean, rstd = composites.layer_norm(c.b, c.x(0), c.optional(1), c.optional(2), dims, c.float("epsilon", 1e-5))
    return made, mean, rstd


def standardized(c: Call, x: SSAValue, dims: tuple[int, ...], eps: float) -> SSAValue:
    """A wide value with mean 0 and variance 1 over dimensions."""
    variance, mean = composites.var_mean(c.b, x, dims, keep=True, correction=0)
    return c.b.mul(c.b.sub(x, mean), c.b.rsqrt(c.b.add(variance, c.b.full_like(variance, eps))))


@onnx_op("InstanceNormalization")
def instance_normalization(c: Call) -> Any:
    x, rank = c.x(0), c.rank(0)
    wide = widened(c.b, x)
    normal = standardized(c, wide, tuple(range(2, rank)), c.float("epsilon", 1e-5))
    scale, bias = (widened(c.b, columns(c, c.x(place), rank - 2)) for place in (1, 2))
    return narrowed(c.b, c.b.add(c.b.mul(normal, scale), bias), c.b.tensor(x).dtype)


@onnx_op("GroupNormalization")
def group_normalization(c: Call) -> Any:
    x, shape, groups = c.x(0), c.shape(0), c.int("num_groups")
    if groups < 1 or shape[1] % groups:
        raise c.unsupported(f"attribute 'num_groups' is {groups}, expected a divisor of {shape[1]}")
    split = (shape[0], groups, shape[1] // groups * math.prod(shape[2:]))
    normal = standardized(c, c.b.reshape(widened(c.b, x), shape=split), (2,), c.float("epsilon", 1e-5))
    each = c.version < 21  # scales were those of groups at first
    if each:
        normal = c.b.reshape(normal, shape=(shape[0], groups, split[2]))
    else:
        normal = c.b.reshape(normal, shape=shape)
    inner = 1 if each else len(shape) - 2
    scale, bias = (widened(c.b, columns(c, c.x(place), inner)) for place in (1, 2))
    made = c.b.add(c.b.mul(normal, scale), bias)
    return narrowed(c.b, c.b.reshape(made, shape=shape), c.b.tensor(x).dtype)


@onnx_op("LRN")
def local_response_normalization(c: Call) -> Any:
    x, shape, size = c.x(0), c.shape(0), c.int("size")
    alpha, beta, bias = c.float("alpha", 1e-4), c.float("beta", 0.75), c.float("bias", 1.0)
    squares = c.b.reshape(c.b.mul(x, x), shape=(shape[0], shape[1], math.prod(shape[2:])))
    padding = (((size - 1) // 2, size - 1 - (size - 1) // 2), (0, 0))
    total = c.b.sum_pool(squares, window=(size, 1), strides=(1, 1), padding=padding, dilation=(1, 1))
    scaled = c.b.add(c.b.mul(total, c.b.full_like(total, alpha / size)), c.b.full_like(total, bias))
    factor = c.b.pow(scaled, c.b.full_like(scaled, beta))
    return c.b.div(x, c.b.reshape(factor, shape=static(c.b.tensor(x))))
