"""Layers of transformers in PyTorch, of any size, with random weights: an encoder's, and a decoder's with a cache."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.frontends.torch.exported import graph_of


class EncoderLayer(nn.Module):
    """A layer of BERT, norms last, or with `first` one of ViT, norms first."""

    def __init__(self, channels: int, heads: int, hidden: int, first: bool = False) -> None:
        super().__init__()
        self.heads, self.first = heads, first
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))
        self.up, self.down = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(linear(x)) for linear in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))

    def _split(self, x: Tensor) -> Tensor:
        batch, rows, channels = x.shape
        return x.view(batch, rows, self.heads, channels // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.norms
        if self.first:
            x = x + self.attended(one(x))
            return x + self.down(F.gelu(self.up(other(x))))
        x = one(x + self.attended(x))
        return other(x + self.down(F.gelu(self.up(x))))


class RootMeanSquare(nn.Module):
    """The norm of Llama."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class DecoderLayer(nn.Module):
    """A layer of Llama: grouped heads, rotated positions, a gated hidden layer.

    With a cache of `held` rows it takes the next `rows`, and gives their keys and values beside its result.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, channels: int, heads: int, kv_heads: int, hidden: int, rows: int, held: int = 0) -> None:
        super().__init__()
        width = channels // heads
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        sizes = (heads * width, kv_heads * width, kv_heads * width)
        self.query, self.key, self.value = (nn.Linear(channels, size, bias=False) for size in sizes)
        self.out = nn.Linear(heads * width, channels, bias=False)
        self.norms = nn.ModuleList(RootMeanSquare(channels) for _ in range(2))
        self.gate, self.up = (nn.Linear(channels, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, channels, bias=False)
        steps = 10000 ** (-torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(held, held + rows).float(), steps).repeat(1, 2)
        self.register_buffer("cosine", angles.cos()[None, None])
        self.register_buffer("sine", angles.sin()[None, None])

    def rotated(self, x: Tensor) -> Tensor:
        half = self.width // 2
        return x * self.cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sine

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.width).transpose(1, 2)

    def _spread(self, x: Tensor) -> Tensor:
        batch, groups, rows, width = x.shape
        repeats = self.heads // groups
        return x[:, :, None].expand(batch, groups, repeats, rows, width).reshape(batch, self.heads, rows, width)

    def attended(self, x: Tensor, cache: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        query = self.rotated(self._split(self.query(x), self.heads))
        key = self.rotated(self._split(self.key(x), self.kv_heads))
        value = self._split(self.value(x), self.kv_heads)
        keys, values = key, value
        if cache:
            keys, values = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        made = F.scaled_dot_product_attention(query, self._spread(keys), self._spread(values), is_causal=not cache)
        return self.out(made.transpose(1, 2).reshape(x.shape)), key, value

    def forward(self, x: Tensor, *cache: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        one, other = self.norms
        made, key, value = self.attended(one(x), cache)
        x = x + made
        y = other(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return (x, key, value) if cache else x


def exported_graph(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[str, dict[str, np.ndarray]]:
    """The graph of a module and its weights, as the ordinary front end makes them."""
    with torch.no_grad():
        program = torch.export.export(module.eval(), arguments)
    text, weights, _ = graph_of(program, "layer")
    return text, weights
