"""Derivatives of attention by blocks of rows: those of all rows at once, in memory that grows with the keys alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

import weft
from weft.ops.matmul import attention_rows


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_rows, "BY_BLOCKS_FROM", 1)
    monkeypatch.setattr(attention_rows, "MOST_ROWS", 16)


def causal(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, is_causal=True)


def masked(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, attn_mask=torch.arange(q.shape[-2])[:, None] % 3 != torch.arange(k.shape[-2]) % 5)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k[:, :1], v[:, :1], enable_gqa=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("function", [causal, masked, grouped])
def test_second_derivatives_and_tangents_by_blocks(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    q, k, v, tq, tk, tv = torch.randn(6, 1, 2, 32, 4, dtype=torch.float64)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return function(q, k, v).pow(3).sum()

    places = (0, 1, 2)
    found = weft.jvp(weft.grad(loss, places), (q, k, v), (tq, tk, tv))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.func.jvp(torch.func.grad(loss, places), (q, k, v), (tq, tk, tv))
    torch.testing.assert_close(found, expected)


def test_tangents_of_gradients_inside_of_a_batch() -> None:
    torch.manual_seed(0)
    x, t = torch.randn(2, 3, 1, 2, 5, 4, dtype=torch.float64)

    def loss(x: Any) -> Any:
        return attend(x, x * 2, x.cos()).pow(3).sum()

    found = weft.vmap(lambda x, t: weft.jvp(lambda x: weft.grad(loss)(x), (x,), (t,))[1])(x, t)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = [torch.func.jvp(torch.func.grad(loss), (x[n],), (t[n],))[1] for n in range(3)]
    torch.testing.assert_close(found, torch.stack(expected))
