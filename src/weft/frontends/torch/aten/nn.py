"""Neural-network operators: softmax and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.index import at_least_1d
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.dtypes import HALF
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.frontends.torch.importer.checks import check_that
from weft.ir.expr import Size
from weft.ir.types import f32, f64
from weft.ops import composites

Many = tuple[SSAValue | None, ...]


@aten("_softmax", "softmax.int", "_safe_softmax")
def softmax(b: ImportBuilder, x: SSAValue, dim: int, *_half_to_float: Any, **options: Any) -> SSAValue:
    result = _along(b, composites.softmax, x, dim)
    if "_safe_softmax" not in str(b.node.target):
        return result
    # Where every element is -∞ there is nothing to distribute: torch's safe variant gives zeros, not NaN.
    hidden = b.emit("eq", x, b.number(-math.inf, b.dtype(x)))
    nothing = b.emit("all", hidden, dims=(normal_dim(dim, b.rank(x)),), keep=True)
    return b.emit("where", nothing, b.number(0, b.dtype(result)), result)


@aten("_log_softmax", "log_softmax.int")
def log_softmax(b: ImportBuilder, x: SSAValue, dim: int, *_half_to_float: Any, **options: Any) -> SSAValue:
    return _along(b, composites.log_softmax, x, dim)


def _along(b: ImportBuilder, function: Callable[..., SSAValue], x: SSAValue, dim: int) -> SSAValue:
    row = at_least_1d(b, b.to(x, b.result.dtype))
    return b.view(function(b, row, normal_dim(dim, b.rank(row))), b.shape(x))


def _check_parameters(b: ImportBuilder, x: SSAValue, *parameters: SSAValue | None) -> None:
    """Parameters of a norm have the type of what is normalized, or are all f32 beside halves: others torch refuses."""
    dtype = b.dtype(x)
    types = {b.dtype(each) for each in parameters if each is not None}
    if len(types) > 1 or not types <= ({dtype, f32} if dtype in HALF else {dtype}):
        raise UnsupportedError("parameters of a norm that are of another type, which torch refuses")


@aten("native_layer_norm")
def layer_norm(
    b: ImportBuilder,
    x: SSAValue,
    shape: Sequence[Size],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: float,
) -> Many:
    _check_parameters(b, x, weight, bias)
    rank = b.rank(x)
    return composites.layer_norm(b, x, weight, bias, tuple(range(rank - len(shape), rank)), eps)


@aten("_fused_rms_norm")
def rms_norm(b: ImportBuilder, x: SSAValue, shape: Sequence[Size], weight: SSAValue | None, eps: float | None) -> Many:
    if eps is None:  # the type it is computed in decides
        eps = torch.finfo(torch.float64 if b.dtype(x) == f64 else torch.float32).eps
    rank = b.rank(x)
    return composites.rms_norm(b, x, weight, tuple(range(rank - len(shape), rank)), eps)


@aten("native_group_norm")
def group_norm(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    rows: Size,
    channels: Size,
    spatial: Size,
    groups: int,
    eps: float,
) -> Many:
    _check_parameters(b, x, weight, bias)
    return composites.group_norm(b, x, weight, bias, groups, eps)


@aten("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    mean: SSAValue,
    variance: SSAValue,
    momentum: float,
    eps: float,
) -> Many:
    return _fixed_batch_norm(b, x, weight, bias, mean, variance, eps)


def _fixed_batch_norm(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    mean: SSAValue,
    variance: SSAValue,
    eps: float,
) -> Many:
    """The result by running statistics; of what training would save torch leaves nothing, but on a GPU these."""
    wide = composites.widened(b, variance)
    statistics = (composites.widened(b, mean), b.rsqrt(b.add(wide, b.full_like(wide, eps))))
    saved = [
        composites.narrowed(b, value, result.dtype) if result.shape == b.tensor(value).shape else b.zeros(result)
        for value, result in zip(statistics, b.results[1:3], strict=False)
        if result is not None
    ]
    return composites.batch_norm(b, x, weight, bias, mean, variance, eps), *saved


@aten("_native_batch_norm_legit_functional")
def batch_norm(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    mean: SSAValue,
    variance: SSAValue,
    training: bool,
    momentum: float,
    eps: float,
) -> Many:
    if not training:
        return *_fixed_batch_norm(b, x, weight, bias, mean, variance, eps), mean, variance
    return *_training(b, x, weight, bias, eps), *_updated(b, x, mean, variance, momentum)


@aten("_batch_norm_with_update_functional")
def batch_norm_with_update(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    mean: SSAValue,
    variance: SSAValue,
    momentum: float,
    eps: float,
) -> Many:
    reserve = b.results[3]
    assert reserve is not None
    return *_training(b, x, weight, bias, eps), b.zeros(reserve), *_updated(b, x, mean, variance, momentum)


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Many:
    return _training(b, x, weight, bias, eps)


def _statistics(b: ImportBuilder, x: SSAValue, correction: float) -> tuple[SSAValue, SSAValue]:
    """The variance and the mean of each channel."""
    dims = (0, *range(2, b.rank(x)))
    return composites.var_mean(b, b.wide(x), dims, False, correction)


def _training(b: ImportBuilder, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, eps: float) -> Many:
    variance, mean = _statistics(b, x, 0)
    rstd = b.emit("rsqrt", b.emit("add", variance, b.number(eps, b.dtype(variance))))
    return composites.batch_norm(b, x, weight, bias, mean, variance, eps), mean, rstd


def _updated(
    b: ImportBuilder, x: SSAValue, mean: SSAValue, variance: SSAValue, momentum: float
) -> tuple[SSAValue, SSAValue]:
    """Running statistics after this batch; that of the variance is not biased."""
    new_variance, new_mean = _statistics(b, x, 1)
    return _moved(b, mean, new_mean, momentum), _moved(b, variance, new_variance, momentum)


def _moved(b: ImportBuilder, running: SSAValue, new: SSAValue, momentum: float) -> SSAValue:
    dtype = b.dtype(new)
    old = b.emit("mul", b.to(running, dtype), b.number(1 - momentum, dtype))
    return b.to(b.emit("add", b.emit("mul", new, b.number(momentum, dtype)), old), b.dtype(running))


_MEAN, _SUM, _LEAST_LOGARITHM = 1, 2, -100.0


@aten("binary_cross_entropy")
def binary_cross_entropy(
    b: ImportBuilder, x: SSAValue, target: SSAValue, weight: SSAValue | None = None, reduction: int = _MEAN
) -> SSAValue:
    """Taken apart by torch it would not look at its input, which must be probabilities."""
    p, target = b.wide(x), b.wide(target)
    dtype = b.dtype(p)
    one, least = b.number(1, dtype), b.number(_LEAST_LOGARITHM, dtype)
    for name, value in (("input", p), ("target", target)):
        inside = b.emit("logical_and", b.emit("ge", value, b.number(0, dtype)), b.emit("le", value, one))
        check_that(b, "data", f"an element of the {name} is not between 0 and 1", b.emit("logical_not", inside))
    of_no = b.emit("maximum", b.emit("log1p", b.emit("neg", p)), least)
    of_yes = b.emit("maximum", b.emit("log", p), least)
    loss = b.emit("sub", b.emit("mul", b.emit("sub", target, one), of_no), b.emit("mul", target, of_yes))
    if weight is not None:
        loss = b.emit("mul", loss, b.wide(weight))
    if reduction in (_MEAN, _SUM):
        dims = tuple(range(b.rank(loss)))
        shape = b.shape(loss)
        loss = b.emit("sum", loss, dims=dims, keep=False)
        loss = b.emit("div", loss, b.count(shape, dims, dtype)) if reduction == _MEAN else loss
    return b.to(loss, b.dtype(x))
