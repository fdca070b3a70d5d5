"""Gradients of norms and activations as PTX: rows and sums of their columns in one kernel, which spills nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ..emulated_graphs import emulated

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def masked_norm(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As in a block of a transformer: operands of 4, 2 and 1 bytes."""
    hidden = x + (bias * mask).bfloat16()
    return F.layer_norm(hidden, hidden.shape[-1:], weight).bfloat16() + hidden


def gated(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    gate, up = (x * mask + bias).chunk(2, -1)
    return F.silu(gate) * up


@pytest.mark.parametrize("columns", [96, 768, 1000])
@pytest.mark.parametrize("function", [masked_norm, gated])
def test_gradients_of_rows_and_their_column_sums_are_right_as_ptx(function: Function, columns: int) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(11, columns), torch.rand(11, columns) < 0.9
    tensors = [x, torch.randn(columns), torch.randn(columns)]

    def gradients(function: Function, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        out = function(leaves[0], mask, *leaves[1:])
        found = torch.autograd.grad(out, leaves, torch.ones_like(out).cumsum(-1) / columns, allow_unused=True)
        return [tensor for tensor in found if tensor is not None]

    own = gradients(emulated(function), tensors)
    exact = gradients(function, [tensor.double() for tensor in tensors])
    eager = gradients(function, tensors)
    for found, wanted, usual in zip(own, exact, eager, strict=True):
        error, allowed = (found.double() - wanted).norm(), (usual.double() - wanted).norm()
        assert error <= 2 * allowed + 1e-5 * wanted.norm()
