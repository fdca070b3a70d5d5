"""Gradients where an activation or a loss is no number are no numbers, and eager's elsewhere, also of no elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: F.elu(x, 1.3),
    "elu in place": lambda x: F.elu(x.clone(), 0.7, inplace=True),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "hardswish": F.hardswish,
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="sum", beta=0.7),
    "smooth_l1_loss, mean": lambda x: F.smooth_l1_loss(x.flip(0), x * 0.5, beta=3.0),
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros_like(x), delta=0.7),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_eagers_and_nan_stays(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    knots = torch.tensor([0.0, -0.0, 3.0, -3.0, 0.7, -0.7, 1.4, math.inf, -math.inf, 1e-30, 100.0, -100.0, math.nan])
    x = torch.cat([knots.flip(0), torch.randn(50) * 3, knots]).to(dtype)  # eager's remainders of vectors differ at NaN
    torch.compiler.reset()
    found, expected = (
        torch.autograd.grad(call(leaf).sum(), leaf)[0]
        for call, leaf in (
            (each, x.clone().requires_grad_()) for each in (torch.compile(function, backend="weft"), function)
        )
    )
    at_nan = x.isnan() if "mean" not in name else x.isnan() | x.flip(0).isnan()
    assert found[at_nan].isnan().all()
    torch.testing.assert_close(found[~at_nan], expected[~at_nan], equal_nan=True)


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss, F.mse_loss])
def test_means_of_no_elements_have_gradients_of_none(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A detector's step without a box to regress: the loss is NaN, and nothing is wrong with its gradient."""
    x = torch.randn(0, 4, requires_grad=True)
    torch.compiler.reset()
    found = torch.compile(loss, backend="weft")(x, torch.randn(0, 4))
    assert found.isnan()
    (gradient,) = torch.autograd.grad(found, x)
    assert gradient.shape == x.shape
