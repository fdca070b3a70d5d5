"""Gradients of functions that write over an argument after they have computed with it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
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


INPLACE = {
    "silu": lambda x: F.silu(x, inplace=True),
    "mish": lambda x: F.mish(x, inplace=True) * 2,
    "pow": lambda x: x.pow_(2),
    "sin": lambda x: x.sin_().exp(),
    "product": lambda x: x.mul_(x.detach() + 1),
}


@pytest.mark.parametrize("function", INPLACE.values(), ids=INPLACE.keys())
@pytest.mark.parametrize("options", [{}, {"memory_budget": "0.5"}], ids=["plain", "budget"])
def test_an_argument_with_a_gradient_is_written_over(function, options) -> None:
    given = torch.randn(3, 5)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", options=options)
    found = []
    for call in (function, compiled, compiled):
        x = given.clone().requires_grad_()
        changed = x * 2
        call(changed).sum().backward()
        assert x.grad is not None
        found.append((x.grad, changed.detach()))
    for gradient, changed in found[1:]:
        torch.testing.assert_close(gradient, found[0][0])
        torch.testing.assert_close(changed, found[0][1])
