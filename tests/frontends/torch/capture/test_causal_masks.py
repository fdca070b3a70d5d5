"""Masks of attention that are causal: they are seen to be, however they are computed, and no others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from weft.frontends.torch import backend
from weft.frontends.torch.capture.causal_masks import state_causal_masks

SIDE = 37


def compared() -> torch.Tensor:
    at = torch.arange(SIDE)
    return at[:, None] >= at[None, :]


def of_documents() -> torch.Tensor:
    """As decoders of transformers make it of their positions, which say where a document begins."""
    positions = torch.arange(SIDE).expand(2, -1)
    begins = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    document = begins.cumsum(-1)
    return compared() & (document[:, :, None] == document[:, None, :])[:, None]


def added() -> torch.Tensor:
    return torch.full((SIDE, SIDE), float("-inf")).triu(1)


def added_lowest() -> torch.Tensor:
    return torch.zeros(SIDE, SIDE).masked_fill(~compared(), torch.finfo(torch.float32).min)[None, None]


def shifted() -> torch.Tensor:
    at = torch.arange(SIDE)
    return at[:, None] + 1 >= at[None, :]


def windowed() -> torch.Tensor:
    at = torch.arange(SIDE)
    return compared() & (at[:, None] - at[None, :] < 9)


def slanted() -> torch.Tensor:
    at = torch.arange(SIDE)
    return -(at[:, None] - at[None, :]).abs().float() + added()


def drawn() -> torch.Tensor:
    return compared() & (torch.rand(SIDE, SIDE) < 2)


def attention(mask: Callable[[], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask())

    return call


def operands(*, requires_grad: bool = False, keys: int = SIDE) -> list[torch.Tensor]:
    return [torch.randn(2, 3, size, 16, requires_grad=requires_grad) for size in (SIDE, keys, keys)]


def stated(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any], given: list[torch.Tensor]) -> list[bool]:
    """Whether each call of attention that was compiled says that it is causal; and results are eager's."""
    found: list[bool] = []

    def state(graph: fx.GraphModule) -> None:
        state_causal_masks(graph)
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                at = [each.name for each in node.target._schema.arguments].index("is_causal")
                found.append(len(node.args) > at and node.args[at] is True)

    monkeypatch.setattr(backend, "state_causal_masks", state)
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="weft", options={"cache": False})
    torch.testing.assert_close(compiled(*given), call(*given))
    return found


@pytest.mark.parametrize("mask", [compared, of_documents, added, added_lowest])
def test_causal_masks_are_not_read(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stated(monkeypatch, attention(mask), operands()) == [True]


@pytest.mark.parametrize("mask", [shifted, windowed, slanted, drawn])
def test_other_masks_are(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stated(monkeypatch, attention(mask), operands()) == [False]


def test_a_mask_of_more_keys_than_rows_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(SIDE)[:, None] >= torch.arange(SIDE + 5)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    assert stated(monkeypatch, call, operands(keys=SIDE + 5)) == [False]


def test_a_mask_that_an_argument_has_a_part_in_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=compared() & (q[0, 0, :, 0] < 9e9)[None, :])

    assert stated(monkeypatch, call, operands()) == [False]


def test_training(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(requires_grad=True)

    def call(*operands: torch.Tensor) -> torch.Tensor:
        return attention(of_documents)(*attention(of_documents)(*operands).chunk(1), *operands[1:]).square().sum()

    assert stated(monkeypatch, call, given) == [True] * 4  # forward and backward of two layers
    found = torch.autograd.grad(torch.compile(call, backend="weft")(*given), given)
    exact = [each.detach().double().requires_grad_() for each in given]
    for one, other in zip(found, torch.autograd.grad(call(*exact), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
