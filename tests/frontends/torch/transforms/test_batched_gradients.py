"""Batches of gradients and tangents through compiled functions, as `torch.autograd` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives

pytestmark = needs_second_derivatives


def layer(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x @ w).cumsum(0), (x * 2).sum()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="weft", options={"fallback": "error"}, **options)


def points(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return tuple(torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((rows,), (rows, 3)))


def test_gradients_may_come_in_a_batch_and_have_gradients() -> None:
    def rows(function: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = points()
        y, total = function(x, w)
        seeds = torch.eye(3, dtype=torch.float64)
        first = torch.autograd.grad(y, (x, w), seeds, is_grads_batched=True, retain_graph=True)
        both = torch.autograd.grad(
            (y, total), (x, w), (seeds, torch.ones(3).double()), is_grads_batched=True, create_graph=True
        )
        second = torch.autograd.grad(both[0].pow(2).sum() + both[1].sin().sum(), (x, w))
        return [*first, *both, *second]

    torch.testing.assert_close(rows(compiled(layer)), rows(layer))


@pytest.mark.parametrize("dynamic", [False, True])
def test_vectorised_jacobians_and_hessians_are_those_of_eager(dynamic: bool) -> None:
    function = compiled(layer, dynamic=dynamic)
    for rows in (4, 6):
        x, w = points(rows)
        found = jacobian(function, (x, w), vectorize=True)
        torch.testing.assert_close(found, jacobian(layer, (x, w)))
        fixed = w.detach()
        second = hessian(lambda x, w=fixed: function(x, w)[0].pow(2).sum(), x, vectorize=True)
        torch.testing.assert_close(second, hessian(lambda x, w=fixed: layer(x, w)[0].pow(2).sum(), x))


def test_tangents_may_come_in_a_batch() -> None:
    x, w = points()
    function = compiled(layer)
    found = jacobian(lambda x: function(x, w.detach())[0], x, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(found, jacobian(lambda x: layer(x, w.detach())[0], x))


def test_gradcheck_looks_at_batches_too() -> None:
    function = compiled(layer)
    assert torch.autograd.gradcheck(lambda x, w: function(x, w)[0], points(), check_batched_grad=True)


def test_batched_gradients_of_dropout_have_the_mask_of_the_call() -> None:
    x = torch.ones(64, dtype=torch.float64, requires_grad=True)
    y = compiled(lambda x: torch.nn.functional.dropout(x, 0.5) * 3)(x)
    (found,) = torch.autograd.grad(y, x, torch.eye(64, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(found, torch.diag(y.detach()))
