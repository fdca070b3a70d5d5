"""Neural-network operators: softmax, normalisation, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.ir import OpResult, SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.index import at_least_1d
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.builder import ImportBuilder, normal_dim
from weft.ir.expr import Size, floordiv, product
from weft.ir.types import boolean, f64
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


@aten("native_layer_norm")
def layer_norm(
    b: ImportBuilder,
    x: SSAValue,
    shape: Sequence[Size],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: float,
) -> Many:
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


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: SSAValue | None = None,
    scale: float | None = None,
) -> Many:
    if dropout:
        raise UnsupportedError("attention with dropout")
    if b.is_used(1) and not b.strict:
        raise UnsupportedError("attention that is trained: torch's kernel keeps what its backward needs")
    key, value = _heads_like(b, key, query), _heads_like(b, value, query)
    operands = [query, key, value]
    if attn_mask is not None:
        operands.append(attn_mask if b.dtype(attn_mask) == boolean else b.to(attn_mask, b.dtype(query)))
    factor = _scale(b, query, scale)
    out = b.emit("attention", *operands, causal=causal, scale=factor)
    if not b.is_used(1):
        return out, None
    scores = attention_scores(b, query, key, attn_mask, causal, factor)
    return out, composites.logsumexp(b, scores, (b.rank(scores) - 1,), False)


@aten("_scaled_dot_product_flash_attention")
def gpu_flash_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Many:
    return _gpu_attention(b, query, key, value, None, dropout, causal, scale)


@aten("_scaled_dot_product_cudnn_attention")
def gpu_cudnn_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    keeps: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Many:
    return _gpu_attention(b, query, key, value, bias, dropout, causal, scale)


@aten("_scaled_dot_product_efficient_attention")
def gpu_efficient_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    keeps: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Many:
    return _gpu_attention(b, query, key, value, bias, dropout, causal, scale)


def _gpu_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Many:
    """Attention as torch gives it to one of a GPU's libraries.

    Of the other results, which are for training, it has sums of powers, and states of a generator that nobody used.
    """
    if dropout:
        raise UnsupportedError("attention with dropout")
    factor = _scale(b, query, scale)
    mask = None if bias is None else b.to(bias, b.dtype(query))
    if not b.is_used(1):
        grouped = _grouped(b, query, key, mask) if b.shape(query)[-2] == 1 and not causal else None
        if grouped is not None:
            rows, *masks = grouped
            made = b.emit("attention", rows, key, value, *masks, causal=False, scale=factor)
            return b.view(made, (*b.shape(query)[:-1], b.shape(value)[-1])), *(None,) * (len(b.results) - 1)
    operands = [query, _heads_like(b, key, query), _heads_like(b, value, query)]
    operands += [] if mask is None else [mask]
    kind = "attention_with_lse" if b.is_used(1) else "attention"
    made = b.emit(kind, *operands, causal=causal, scale=factor)
    if not b.is_used(1):
        return made, *(None,) * (len(b.results) - 1)
    out, sums = made
    lse = b.results[1]
    assert lse is not None
    if product(lse.shape) != product(b.shape(sums)):
        raise UnsupportedError("sums of powers with room for more rows than there are")
    states = [
        b.emit("full", value=0, shape=state.shape, dtype=state.dtype) if state else None for state in b.results[2:]
    ]
    return out, b.view(sums, lse.shape), *states


def flex_attention(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    mask: SSAValue,
    added: SSAValue | None = None,
    *,
    scale: float,
    softcap: float,
) -> Many:
    """Attention with a mask, and what is added to scores where it holds; of its other results, the sums of powers."""
    if b.is_used(2):
        raise UnsupportedError("the greatest scores of attention")
    if added is not None:
        mask = b.emit("where", mask, added, b.number(-math.inf, b.dtype(added)))
    params: dict[str, Any] = {"causal": False, "scale": scale, **({"softcap": softcap} if softcap else {})}
    grouped = _grouped(b, query, key, mask) if b.shape(query)[-2] == 1 and not b.is_used(1) else None
    if grouped is not None:
        rows, *masks = grouped
        made = b.emit("attention", rows, key, value, *masks, **params)
        return b.view(made, (*b.shape(query)[:-1], b.shape(value)[-1])), *(None,) * (len(b.results) - 1)
    operands = [query, _heads_like(b, key, query), _heads_like(b, value, query), mask]
    if not b.is_used(1):
        return b.emit("attention", *operands, **params), *(None,) * (len(b.results) - 1)
    out, sums = b.emit("attention_with_lse", *operands, **params)
    # They are in units of powers of two.
    return out, b.emit("mul", sums, b.number(1 / math.log(2), b.dtype(sums))), *(None,) * (len(b.results) - 2)


def _grouped(b: ImportBuilder, query: SSAValue, key: SSAValue, mask: SSAValue | None) -> list[SSAValue] | None:
    """Single queries of heads that share keys as rows of one head, and their mask; None if each has keys of its own."""
    batch, heads, _, width = b.shape(query)
    shared = b.shape(key)[1]
    if shared == heads:
        return None
    group = floordiv(heads, shared)
    rows = b.view(query, (batch, shared, group, width))
    if mask is None:
        return [rows]
    while isinstance(mask, OpResult) and mask.op.name == "graph.broadcast":
        mask = mask.op.operands[0]
    own = (*(1,) * (4 - b.rank(mask)), *b.shape(mask))
    if own[1] == 1:
        return [rows, b.view(mask, own)]
    return [rows, b.view(mask, (own[0], shared, group, own[3]))]


def _heads_like(b: ImportBuilder, x: SSAValue, query: SSAValue) -> SSAValue:
    """Keys or values with each head repeated for the queries that share it."""
    batch, heads, *rest = b.shape(x)
    wanted = b.shape(query)[1]
    if heads == wanted:
        return x
    spread = b.expand(b.unsqueeze(x, 2), (batch, heads, floordiv(wanted, heads), *rest))
    return b.view(spread, (batch, wanted, *rest))


def _scale(b: ImportBuilder, query: SSAValue, scale: float | None) -> float:
    if scale is not None:
        return scale
    width = b.shape(query)[-1]
    if not isinstance(width, int):
        raise UnsupportedError("attention over heads of symbolic width")
    return 1.0 / math.sqrt(width)


def attention_scores(
    b: ImportBuilder, query: SSAValue, key: SSAValue, mask: SSAValue | None, causal: bool, scale: float
) -> SSAValue:
    """What softmax is taken of, in a type that keeps sums: `scale * query @ keyᵀ + mask`."""
    query, key = b.wide(query), b.wide(key)
    dtype = b.dtype(query)
    rank = b.rank(key)
    turned = b.transpose(key, [*range(rank - 2), rank - 1, rank - 2])
    scores = b.emit("mul", b.emit("dot", query, turned), b.number(scale, dtype))
    never = b.number(-math.inf, dtype)
    if causal:
        *_, rows, columns = b.shape(scores)
        past = b.emit("ge", b.unsqueeze(b.iota_of(rows), 1), b.iota_of(columns))
        scores = b.emit("where", past, scores, never)
    if mask is None:
        return scores
    if b.dtype(mask) == boolean:
        return b.emit("where", mask, scores, never)
    return b.emit("add", scores, b.to(mask, dtype))


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    b: ImportBuilder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    out: SSAValue,
    logsumexp: SSAValue,
    dropout: float,
    causal: bool,
    *,
    attn_mask: SSAValue | None = None,
    scale: float | None = None,
) -> Many:
    if dropout or not b.strict:
        raise UnsupportedError("torch's kernel for the backward of attention")
    if b.shape(key)[1] != b.shape(query)[1]:
        raise UnsupportedError("the backward of attention with shared heads")
    factor = _scale(b, query, scale)
    scores = attention_scores(b, query, key, attn_mask, causal, factor)
    dtype = b.dtype(scores)
    grad, query, key, value, out = (b.to(x, dtype) for x in (grad, query, key, value, out))
    rank = b.rank(scores)
    turn = [*range(rank - 2), rank - 1, rank - 2]
    weights = b.emit("exp", b.emit("sub", scores, b.unsqueeze(b.to(logsumexp, dtype), rank - 1)))
    on_weights = b.emit("dot", grad, b.transpose(value, turn))
    row = b.emit("sum", b.emit("mul", grad, out), dims=(rank - 1,), keep=True)
    on_scores = b.emit("mul", b.emit("mul", weights, b.emit("sub", on_weights, row)), b.number(factor, dtype))
    return (
        b.emit("dot", on_scores, key),
        b.emit("dot", b.transpose(on_scores, turn), query),
        b.emit("dot", b.transpose(weights, turn), grad),
    )
