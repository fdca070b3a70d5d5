"""Narrow floats inside a fused kernel: what is returned is what later ops saw, and a switch rounds as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

NARROW = [torch.float16, torch.bfloat16]


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


def kept(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = a * b
    s = (p + 1).sum(1, keepdim=True)
    return p, p.tan(), s


def chain(a: Tensor, b: Tensor) -> Tensor:
    return ((a + b) * a - b) * a + b.exp()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_an_intermediate_that_is_returned_is_what_later_ops_see(dtype: torch.dtype) -> None:
    a, b = torch.randn(40, 33).to(dtype), torch.randn(40, 33).to(dtype)
    p, t, _ = compiled(kept)(a, b)
    assert torch.equal(p, a * b)
    assert torch.equal(t, p.tan())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_of_a_product_too(dtype: torch.dtype) -> None:
    def layer(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, y.sigmoid()

    x, w = torch.randn(24, 33).to(dtype), torch.randn(33, 16).to(dtype)
    y, z = compiled(layer, strict=True)(x, w)
    assert torch.equal(z, y.sigmoid())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_switch_rounds_every_intermediate_as_eager_does(dtype: torch.dtype) -> None:
    a, b = torch.randn(40, 33).to(dtype), torch.randn(40, 33).to(dtype)
    exact = chain(a.double(), b.double())
    wide = compiled(chain)(a, b)
    assert not torch.equal(wide, chain(a, b))
    assert (wide - exact).abs().max() <= (chain(a, b) - exact).abs().max()
    assert torch.equal(compiled(chain, emulate_precision_casts=True)(a, b), chain(a, b))


def test_wide_floats_do_not_notice_the_switch() -> None:
    a, b = torch.randn(40, 33), torch.randn(40, 33)
    assert torch.equal(compiled(chain, emulate_precision_casts=True)(a, b), compiled(chain)(a, b))
