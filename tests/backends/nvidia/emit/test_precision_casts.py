"""Narrow floats in kernels for a GPU: what is returned is what later ops saw, and a switch rounds as eager does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..emulated_graphs import emulated

NARROW = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_an_intermediate_that_is_returned_is_what_later_ops_see(dtype: torch.dtype) -> None:
    def kept(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        p = a * b
        return p, p * p

    a, b = torch.randn(9, 33).to(dtype), torch.randn(9, 33).to(dtype)
    p, q = emulated(kept)(a, b)
    assert torch.equal(p, a * b)
    assert torch.equal(q, p * p)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_switch_rounds_every_intermediate_as_eager_does(dtype: torch.dtype) -> None:
    def chain(a: Tensor, b: Tensor) -> Tensor:
        return ((a + b) * a - b) * a + b

    a, b = torch.randn(9, 33).to(dtype), torch.randn(9, 33).to(dtype)
    assert not torch.equal(emulated(chain)(a, b), chain(a, b))
    assert torch.equal(emulated(chain, emulate_precision_casts=True)(a, b), chain(a, b))
