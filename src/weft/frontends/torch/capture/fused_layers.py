"""Layers that torch runs as one call, taken apart: attention and transformer layers, bilinear layers."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight: Tensor,
    norm_bias: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    weight: Tensor,
    bias: Tensor,
    weight_2: Tensor,
    bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`aten::_transformer_encoder_layer_fwd`: attention and two products, each added to its operand, with two norms."""
    if x.is_nested:
        return NotImplemented
    if x.numel() == 0:
        return x.clone()

    def first_norm(value: Tensor) -> Tensor:
        return functional.layer_norm(value, (width,), norm_weight, norm_bias, eps)

    def second_norm(value: Tensor) -> Tensor:
        return functional.layer_norm(value, (width,), norm_weight_2, norm_bias_2, eps)

    given = first_norm(x) if norm_first else x
    attended, _ = _attention(given, given, given, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, mask_type)
    x = attended + x if norm_first else first_norm(attended + x)
    hidden = functional.linear(second_norm(x) if norm_first else x, weight, bias)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    x = functional.linear(hidden, weight_2, bias_2) + x
    return x if norm_first else second_norm(x)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`aten::_native_multi_head_attention`: projections, attention and the projection of its result."""
    if query.is_nested or query.numel() == 0:
        return NotImplemented
    result, weights = _attention(query, key, value, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, mask_type)
    if not need_weights:
        return result, None
    return result, weights.sum(1) / heads if average_attn_weights else weights


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
) -> tuple[Tensor, Tensor]:
    """What attention gives, and the weights of the values; a mask is true (not 0) where a key is not seen."""
    batch, length, width = query.shape
    if query is key and key is value:
        parts = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        factors = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        parts = tuple(functional.linear(each, weight, bias) for each, weight, bias in factors)
    q, k, v = (part.view(batch, length, heads, width // heads).transpose(1, 2) for part in parts)
    scores = (q * (1 / math.sqrt(width // heads))) @ k.transpose(-1, -2)
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type == 1:  # of keys, for each sequence
            hidden = hidden.view(batch, 1, 1, length)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1)
    seen = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    return functional.linear(seen, out_weight, out_bias), weights


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """`aten::_trilinear`: the sum over some dimensions of the product of three tensors that lack some of all."""
    rank = first.dim() + len(expand1)
    names = [chr(ord("a") + dim) for dim in range(rank)]
    absent = [{dim % rank for dim in dims} for dims in (expand1, expand2, expand3, sumdim)]
    *terms, result = ("".join(name for dim, name in enumerate(names) if dim not in dims) for dims in absent)
    return torch.einsum(f"{','.join(terms)}->{result}", first, second, third)
