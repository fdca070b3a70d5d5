"""Loops with a condition: gradients, and duals after a call without them, compiled and what turns written out give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop
from torch.autograd import forward_ad

W, Y = torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)


def looped(w: Tensor, y: Tensor) -> Tensor:
    def turn(n: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return n + 1, x + 0.1 * torch.tanh(x @ w)

    return while_loop(lambda n, x: n < 4, turn, (torch.tensor(0), y))[1]


def written_out(w: Tensor, y: Tensor) -> Tensor:
    for _ in range(4):
        y = y + 0.1 * torch.tanh(y @ w)
    return y


def gradients(function: Any) -> tuple[Tensor, ...]:
    w, y = (each.clone().requires_grad_() for each in (W, Y))
    return torch.autograd.grad(function(w, y).pow(2).sum(), (w, y))


def test_gradients_of_what_is_carried_and_of_what_is_captured() -> None:
    torch.compiler.reset()
    compiled = torch.compile(looped, backend="weft", options={"fallback": "error"})
    torch.testing.assert_close(gradients(compiled), gradients(written_out))


def test_duals_of_what_was_compiled_without_them() -> None:
    torch.compiler.reset()
    compiled = torch.compile(written_out, backend="weft", options={"fallback": "error"})
    gradients(compiled)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(W.clone().requires_grad_(), W.cos())
        mine, eager = (forward_ad.unpack_dual(each(dual, Y)).tangent for each in (compiled, written_out))
    torch.testing.assert_close(mine, eager)
