"""Training steps of modulated norms: gradients of shifts, scales and gates are sums of tokens, image by image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..emulated_graphs import emulated


def loss(x: Tensor, y: Tensor, shift: Tensor, scale: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    behind = x + gate[:, None] * y
    normal = F.layer_norm(behind.float(), x.shape[-1:]).to(x.dtype)
    return F.linear(normal * (1 + scale[:, None]) + shift[:, None], weight).float().square().mean()


def test_gradients_are_as_near_as_eagers() -> None:
    torch.manual_seed(0)
    exact: list[Any] = [*torch.randn(2, 2, 192, 200), *torch.randn(3, 2, 200), torch.randn(8, 200) / 14]
    exact = [each.bfloat16().double() for each in exact]

    def gradients(function: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in exact]
        function(*leaves).backward()
        return [leaf.grad.double() for leaf in leaves]

    found, eager = gradients(emulated(loss), torch.bfloat16), gradients(loss, torch.bfloat16)
    for own, theirs, right in zip(found, eager, gradients(loss, torch.float64), strict=True):
        assert (own - right).norm() <= 2 * (theirs - right).norm() + 1e-3 * right.norm()
