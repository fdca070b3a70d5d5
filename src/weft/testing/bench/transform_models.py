"""The networks that `weft bench func` differentiates: functions of a dictionary of weights and an input."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Weights = dict[str, Tensor]


def layers(*widths: int, seed: int = 0) -> Weights:
    """Weights of linear layers, as large as keeps values of one size."""
    random = torch.Generator().manual_seed(seed)
    found: Weights = {}
    for number, (fan_in, fan_out) in enumerate(pairwise(widths)):
        found[f"weight{number}"] = torch.randn(fan_out, fan_in, generator=random) / fan_in**0.5
        found[f"bias{number}"] = torch.randn(fan_out, generator=random) / 10
    return found


def perceptron(weights: Weights, x: Tensor) -> Tensor:
    """Linear layers with tanh between them: smooth, as derivatives of second order need."""
    last = len(weights) // 2 - 1
    for number in range(last + 1):
        x = F.linear(x, weights[f"weight{number}"], weights[f"bias{number}"])
        x = torch.tanh(x) if number < last else x
    return x


def convolutions(seed: int = 0) -> Weights:
    """Weights of `convnet`."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"first": (16, 1, 8, 8), "second": (32, 16, 4, 4), "third": (32, 512), "fourth": (10, 32)}
    found: Weights = {}
    for name, shape in shapes.items():
        found[f"{name}.weight"] = torch.randn(shape, generator=random) / torch.tensor(shape[1:]).prod() ** 0.5
        found[f"{name}.bias"] = torch.randn(shape[0], generator=random) / 10
    return found


def convnet(weights: Weights, images: Tensor) -> Tensor:
    """The small network for images of 28x28 that is trained with differential privacy."""
    x = F.conv2d(images, weights["first.weight"], weights["first.bias"], stride=2, padding=3)
    x = F.max_pool2d(F.relu(x), 2, 1)
    x = F.conv2d(x, weights["second.weight"], weights["second.bias"], stride=2)
    x = F.max_pool2d(F.relu(x), 2, 1).flatten(1)
    x = F.relu(F.linear(x, weights["third.weight"], weights["third.bias"]))
    return F.linear(x, weights["fourth.weight"], weights["fourth.bias"])


class _Block(nn.Module):
    """Attention that sees what came before, and a network of two layers, each after a norm and beside a residual.

    Where it is `written_out`, torch has tangents for it, which its fused attention lacks.
    """

    def __init__(self, width: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = heads, written_out
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.projections(self.before_attention(x)).chunk(3, -1)
        split = [each.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for each in (query, key, value)]
        attend = _attend if self.written_out else partial(F.scaled_dot_product_attention, is_causal=True)
        attended = attend(*split)
        x = x + self.out(attended.transpose(-2, -3).flatten(-2))
        return x + self.down(F.gelu(self.up(self.before_network(x))))


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ value


class TinyTransformer(nn.Module):
    """A language model of two blocks, for rows of tokens with or without a batch."""

    def __init__(self, *, written_out: bool = False, tokens: int = 256, length: int = 32, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(torch.randn(length, width) / 10)
        self.blocks = nn.Sequential(*(_Block(width, 4, written_out) for _ in range(2)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.norm(self.blocks(self.tokens(tokens) + self.places)))


def weights_of(module: nn.Module) -> Weights:
    """The parameters of a module, for `torch.func.functional_call`."""
    return {name: each.detach() for name, each in module.named_parameters()}
