"""The backward of attention on a GPU, as its libraries are asked for it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.attention import Many, attention_scale
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, floordiv
from weft.ir.types import f32


@aten("_scaled_dot_product_flash_attention_backward")
def gpu_flash_attention_backward(
    b: ImportBuilder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    out: SSAValue,
    logsumexp: SSAValue,
    first_queries: SSAValue | None,
    first_keys: SSAValue | None,
    longest_query: Size,
    longest_key: Size,
    dropout: float,
    causal: bool,
    seed: SSAValue | None = None,
    offset: SSAValue | None = None,
    *,
    scale: float | None = None,
) -> Many:
    return _gpu_gradients(b, (grad, query, key, value, out, logsumexp), dropout, causal, scale)


@aten("_scaled_dot_product_cudnn_attention_backward")
def gpu_cudnn_attention_backward(
    b: ImportBuilder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    out: SSAValue,
    logsumexp: SSAValue,
    seed: SSAValue | None,
    offset: SSAValue | None,
    bias: SSAValue | None,
    first_queries: SSAValue | None,
    first_keys: SSAValue | None,
    longest_query: Size,
    longest_key: Size,
    dropout: float,
    causal: bool,
    *,
    scale: float | None = None,
) -> Many:
    if bias is not None:
        raise UnsupportedError("the backward of attention with a mask")
    return _gpu_gradients(b, (grad, query, key, value, out, logsumexp), dropout, causal, scale)


@aten("weft.dropout_attention_gradients")
def dropout_attention_gradients(
    b: ImportBuilder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    out: SSAValue,
    logsumexp: SSAValue,
    seed: SSAValue,
    dropout: float,
    causal: bool,
    scale: float,
) -> Many:
    return _gpu_gradients(b, (grad, query, key, value, out, logsumexp), dropout, causal, scale, seed)


def _gpu_gradients(
    b: ImportBuilder,
    tensors: Sequence[SSAValue],
    dropout: float,
    causal: bool,
    scale: float | None,
    seed: SSAValue | None = None,
) -> Many:
    """The gradients of attention from what a GPU's library, or Weft's own kernel, keeps of it."""
    if dropout and seed is None:
        raise UnsupportedError("attention with dropout")
    grad, query, key, value, out, logsumexp = tensors
    batch, heads, length, width = b.shape(query)
    factor = attention_scale(b, query, scale)
    if factor == 0:
        raise UnsupportedError("attention whose scores are all scaled to zero")
    shared = b.shape(key)[1]
    members = (batch, shared, floordiv(heads, shared), length)
    # Where heads lie side by side, so do views of both factors: one kernel reads them in place.
    product = b.emit("mul", *(b.to(b.transpose(x, (0, 2, 1, 3)), f32) for x in (grad, out)))
    rows = b.view(b.transpose(b.emit("sum", product, dims=(3,), keep=False), (0, 2, 1)), members)
    grad, query = b.view(grad, (*members, b.shape(grad)[-1])), b.view(query, (*members, width))
    kept = b.view(logsumexp, members)
    drawn, options = ([], {}) if seed is None else ([seed], {"dropout": dropout})
    operands = [grad, query, key, value, kept, rows, *drawn]
    found = b.emit("attention_gradients", *operands, causal=causal, scale=factor, **options)
    return b.view(found[0], (batch, heads, length, width)), *found[1:]
