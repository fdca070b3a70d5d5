"""Gradients of functions that write over an argument after they have computed with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def divided(x: Tensor, n: Tensor) -> Tensor:
    y = x / (n * n + 1)
    n[..., ::2].mul_(2)
    return y


def scaled(x: Tensor, n: Tensor) -> Tensor:
    y = (x * n.to(x.dtype).sin()).exp()
    n.add_(1)
    return y * n


@pytest.mark.parametrize("function", [divided, scaled])
@pytest.mark.parametrize("options", [{}, {"memory_budget": "0.5"}], ids=["plain", "budget"])
def test_the_backward_reads_what_was_there_before(function, options) -> None:
    given = torch.randn(4, 4, 3)
    numbers = torch.randint(1, 9, (4, 4, 3), dtype=torch.int32)
    compiled = torch.compile(function, backend="weft", options=options)
    found = []
    for call in (function, compiled, compiled):
        x, n = given.clone().requires_grad_(), numbers.clone()
        call(x, n).sum().backward()
        assert x.grad is not None
        found.append((x.grad, n))
    for gradient, changed in found[1:]:
        torch.testing.assert_close(gradient, found[0][0])
        assert torch.equal(changed, found[0][1])
