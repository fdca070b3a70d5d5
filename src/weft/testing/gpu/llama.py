"""A decoder of Llama-3-8B's shape with random weights: prompts and single tokens, keys and values in a fixed cache."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a decoder; the default is Llama-3-8B."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    inner: int = 14336
    vocabulary: int = 128256
    room: int = 2048
    """Positions that the cache holds."""

    @property
    def depth(self) -> int:
        return self.width // self.heads


SMALL = LlamaShape(layers=2, width=64, heads=4, kv_heads=2, inner=128, vocabulary=256, room=64)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    one, other = x.float().chunk(2, -1)
    return (x.float() * cosine + torch.cat((-other, one), -1) * sine).to(x.dtype)


class Layer(nn.Module):
    """Attention over the cache, then a gated product, each after a norm and added to what came in."""

    def __init__(self, shape: LlamaShape, batch: int) -> None:
        super().__init__()
        depth = shape.depth
        self.shape = shape
        self.norm_attention, self.norm_inner = (nn.Parameter(torch.ones(shape.width)) for _ in range(2))
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * depth, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, shape.kv_heads, shape.room, depth))

    def forward(self, x: Tensor, position: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        shape, (batch, length, _) = self.shape, x.shape
        parts = self.qkv(_rms_norm(x, self.norm_attention)).view(batch, length, -1, shape.depth).transpose(1, 2)
        query, key, value = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        keys, values = self.get_buffer("keys"), self.get_buffer("values")
        keys.index_copy_(2, position, _rotated(key, cosine, sine))
        values.index_copy_(2, position, value)
        query = _rotated(query, cosine, sine)
        if length > 1:  # a prompt, which begins at the first position: it has no need of the cache
            attended = F.scaled_dot_product_attention(
                query, _rotated(key, cosine, sine), value, is_causal=True, enable_gqa=True
            )
        else:
            attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(_rms_norm(x, self.norm_inner)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Token ids and their positions to the logits of the last one."""

    def __init__(self, shape: LlamaShape, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape, batch) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.02)
        frequencies = 500_000.0 ** (-torch.arange(0, shape.depth, 2).float() / shape.depth)
        angles = torch.outer(torch.arange(shape.room).float(), frequencies)
        self.register_buffer("cosine", angles.cos().repeat(1, 2).float())
        self.register_buffer("sine", angles.sin().repeat(1, 2).float())
        self.room = shape.room

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        cosine, sine = self.get_buffer("cosine")[position], self.get_buffer("sine")[position]
        mask = torch.arange(self.room, device=ids.device)[None, :] <= position[:, None]
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, position, cosine, sine, mask)
        return self.head(_rms_norm(x[:, -1], self.norm))

    def read_a_token(self) -> int:
        """Bytes of weights that every call reads; of the embedding only rows are."""
        return sum(parameter.nbytes for name, parameter in self.named_parameters() if not name.startswith("embedding"))
