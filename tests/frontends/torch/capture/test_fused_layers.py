"""Layers that torch runs as one call when nothing is trained: taken apart, so that nothing of them is left to torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.testing.comparison import compare

PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(7)
MASKS: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "padding": {"src_key_padding_mask": PADDING},
    "causal": {"src_mask": CAUSAL},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


def check(module: nn.Module, call: Callable[..., Any], x: Tensor) -> None:
    """Nothing is left to torch, and the error against float64 is at most twice eager's."""
    torch.compiler.reset()
    twin = copy.deepcopy(module).double()
    with torch.no_grad():
        run = torch.compile(lambda x: call(module, x), backend="weft", options={"strict": True, "cache": False})
        found = compare(run(x), call(module, x), call(twin, x.double()))
    assert found.ok, str(found)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize(
    ("masks", "norm_first", "activation"),
    [("no mask", False, "relu"), ("padding", True, "gelu"), ("causal", False, "gelu"), ("both", True, "relu")],
)
def test_encoder_layers(masks: str, norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first, activation=activation).eval()
    given = MASKS[masks]

    def call(module: Any, x: Tensor) -> Any:
        return module(x, **{key: m.to(x.dtype) if m.is_floating_point() else m for key, m in given.items()})

    check(layer, call, torch.randn(2, 7, 32))


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str)
def test_attention(options: dict[str, bool]) -> None:
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()

    def call(module: Any, x: Tensor) -> Any:
        found, weights = module(x, x, x, **options)
        return (found, weights) if options.get("need_weights", True) else found

    check(attention, call, torch.randn(2, 7, 32))


@pytest.mark.parametrize("layer", [nn.Linear(5, 7), nn.Conv1d(3, 4, 2)], ids=["linear", "convolution"])
def test_gradients_of_weight_norms(layer: nn.Module) -> None:
    torch.compiler.reset()
    module = nn.utils.parametrizations.weight_norm(layer)
    x = torch.randn(2, 3, 5)
    run = torch.compile(module, backend="weft", options={"strict": True, "cache": False})
    gradients = [torch.autograd.grad(f(x).square().sum(), list(module.parameters())) for f in (run, module)]
    torch.testing.assert_close(*gradients)


def test_bilinear_layers() -> None:
    torch.compiler.reset()
    layer, x, y = nn.Bilinear(5, 6, 7), torch.randn(4, 5, requires_grad=True), torch.randn(4, 6)
    run = torch.compile(layer, backend="weft", options={"strict": True, "cache": False})
    gradients = [torch.autograd.grad(f(x, y).square().sum(), [x, *layer.parameters()]) for f in (run, layer)]
    torch.testing.assert_close(*gradients)
