"""Attention, as torch gives it to its libraries: forward on every device, and its backward on a CPU."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Expr, floordiv, product
from weft.ir.types import boolean, i64, tensor_of
from weft.ops import composites
from weft.passes.simplify.constant_values import made_by, number_of

Many = tuple[SSAValue | None, ...]
_NOTHING = (-65504.0, -65536.0, -math.inf)
"""What torch adds for a library where a mask of booleans is false: for cuDNN the first, which bf16 makes the second."""


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
    key, value = heads_like(b, key, query), heads_like(b, value, query)
    operands = [query, key, value]
    if attn_mask is not None:
        operands.append(attn_mask if b.dtype(attn_mask) == boolean else b.to(attn_mask, b.dtype(query)))
    factor = attention_scale(b, query, scale)
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
    if causal and b.shape(query)[-2] != b.shape(key)[-2]:
        raise UnsupportedError("causal attention that lets the last query see the last of more keys")
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
    given = bias if bias is None or b.is_used(1) else _given_mask(b, bias)
    return _gpu_attention(b, query, key, value, given, dropout, causal, scale)


def _given_mask(b: ImportBuilder, bias: SSAValue) -> SSAValue:
    """The booleans that torch has made numbers of, for a library that takes no infinities; else the numbers."""
    value = bias
    while (view := made_by(value, "graph.broadcast")) is not None:
        value = view.operands[0]
    choice = made_by(value, "graph.where")
    if choice is None or tensor_of(choice.operands[0].type).shape != b.shape(value):
        return bias
    condition, *values = choice.operands
    numbers = [number_of(each) for each in values]
    if 0 not in numbers or not any(number in _NOTHING for number in numbers):
        return bias
    return condition if numbers[0] == 0 else b.emit("logical_not", condition)


@aten("weft.attention_with_dropout")
def attention_with_dropout(
    b: ImportBuilder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    seed: SSAValue,
    dropout: float,
    causal: bool,
    scale: float,
) -> Many:
    operands = [query, heads_like(b, key, query), heads_like(b, value, query), seed]
    return b.emit("attention_with_dropout", *operands, causal=causal, scale=scale, dropout=dropout)


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
    factor = attention_scale(b, query, scale)
    mask = bias if bias is None or b.dtype(bias) == boolean else b.to(bias, b.dtype(query))
    operands = [query, heads_like(b, key, query), heads_like(b, value, query)]
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
    operands = [query, heads_like(b, key, query), heads_like(b, value, query), mask]
    if not b.is_used(1):
        return b.emit("attention", *operands, **params), *(None,) * (len(b.results) - 1)
    out, sums = b.emit("attention_with_lse", *operands, **params)
    # They are in units of powers of two.
    return out, b.emit("mul", sums, b.number(1 / math.log(2), b.dtype(sums))), *(None,) * (len(b.results) - 2)


def heads_like(b: ImportBuilder, x: SSAValue, query: SSAValue) -> SSAValue:
    """Keys or values with each head repeated for the queries that share it."""
    batch, heads, *rest = b.shape(x)
    wanted = b.shape(query)[1]
    if heads == wanted:
        return x
    shared = floordiv(wanted, heads)
    if isinstance(heads, Expr) and heads * shared != wanted:  # it is known when it runs that one divides the other
        places = b.emit("floordiv", b.iota_of(wanted), b.number(shared, i64))
        return b.emit("take", x, places, dim=1)
    spread = b.expand(b.unsqueeze(x, 2), (batch, heads, shared, *rest))
    return b.view(spread, (batch, wanted, *rest))


def attention_scale(b: ImportBuilder, query: SSAValue, scale: float | None) -> float:
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
    factor = attention_scale(b, query, scale)
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
