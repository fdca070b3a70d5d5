"""Attention whose weights are dropped by a seed, and its gradients, as operators of torch.

`remat/draw_dropout.py` puts them in place of a library's; they are kernels, and what stands here is what they mean.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch

from weft.ops.matmul.attention_dropout import kept_weights

_ops: Any = torch.ops
_library = torch.library.Library("weft", "FRAGMENT")
_OPTIONS = "float dropout, bool causal, float scale"
_library.define(f"attention_with_dropout(Tensor q, Tensor k, Tensor v, Tensor seed, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(
    "dropout_attention_gradients(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor seed,"
    f" {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)


def _weights(
    q: torch.Tensor, k: torch.Tensor, seed: torch.Tensor, dropout: float, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scores, the logarithms of sums of their powers, and what each weight counts for."""
    scores = (q.float() @ k.float().repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), -torch.inf)
    kept = torch.from_numpy(kept_weights(seed.cpu().numpy(), tuple(scores.shape), dropout)).to(q.device)
    return scores, scores.logsumexp(-1), kept / (1 - dropout)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seed: torch.Tensor, dropout: float, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores, lse, counts = _weights(q, k, seed, dropout, causal, scale)
    values = v.float().repeat_interleave(q.shape[1] // v.shape[1], 1)
    made = ((scores - lse[..., None]).exp() * counts) @ values
    return torch.empty_like(q).copy_(made), lse


def _gradients(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    seed: torch.Tensor,
    dropout: float,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores, _, counts = _weights(q, k, seed, dropout, causal, scale)
    members = q.shape[1] // k.shape[1]
    keys, values = (each.float().repeat_interleave(members, 1) for each in (k, v))
    weights, wide = (scores - lse[..., None]).exp(), grad.float()
    slopes = (wide @ values.mT) * counts - (wide * out.float()).sum(-1, keepdim=True)
    on_scores = weights * slopes * scale
    found = on_scores @ keys, on_scores.mT @ q.float(), (weights * counts).mT @ wide
    summed = [each.unflatten(1, (-1, members)).sum(2) for each in found[1:]]
    made = [torch.empty_like(x).copy_(each) for x, each in zip((q, k, v), (found[0], *summed), strict=True)]
    return made[0], made[1], made[2]


def _fake_attention(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_gradients(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


for _name, _eager, _fake in (
    ("attention_with_dropout", _attention, _fake_attention),
    ("dropout_attention_gradients", _gradients, _fake_gradients),
):
    _library.impl(_name, _eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake)


ATTENTION: Any = _ops.weft.attention_with_dropout.default
GRADIENTS: Any = _ops.weft.dropout_attention_gradients.default
