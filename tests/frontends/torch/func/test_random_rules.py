"""Random numbers of functions with rules of their own: what a rule reads is what the function drew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft


class Dropped(torch.autograd.Function):
    """Keeps a mask that is neither an argument nor a result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * ctx.saved_tensors[0]


class Returned(torch.autograd.Function):
    """Returns its mask, and has a batching rule, which would draw another."""

    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        return x * mask, mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Returned.apply(x), (0, 0)


@weft.func.custom(vjp=lambda grads, args, results: (grads * (results != 0),))
def drawn(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand_like(x) > 0.5)


def value_beside(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def beside(x: torch.Tensor) -> Any:
        y = function(x)
        return y.sum(), y

    return beside


FUNCTIONS = {
    "saved": lambda x: Dropped.apply(x),
    "returned": lambda x: Returned.apply(x)[0],
    "twice": lambda x: drawn(drawn(x)),
    "checkpoint": weft.func.checkpoint(lambda x: Dropped.apply(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_of_the_numbers_that_were_drawn(name: str) -> None:
    gradient, value = weft.grad(value_beside(FUNCTIONS[name]), has_aux=True)(torch.rand(200) + 1)
    assert torch.equal(gradient, (value != 0).float())
    assert 0.1 < gradient.mean() < 0.65


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_draw_as_they_are_told(name: str, randomness: str) -> None:
    each = weft.grad(value_beside(FUNCTIONS[name]), has_aux=True)
    gradient, value = weft.vmap(each, randomness=randomness)(torch.rand(4, 200) + 1)
    assert torch.equal(gradient, (value != 0).float())
    assert torch.equal(gradient[0], gradient[1]) == (randomness == "same")


def test_calls_of_one_function_draw_other_numbers() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([Dropped.apply(x), Dropped.apply(x), drawn(x), F.dropout(x, 0.5)])

    masks = weft.vmap(both, randomness="same")(torch.ones(1, 64))[0] != 0
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


def test_batching_rules_may_draw() -> None:
    rule = lambda size, batched, args: drawn(args[0])  # noqa: E731
    batched = weft.func.custom(lambda x: x * (torch.rand_like(x) > 0.5), batch=rule)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([batched(x), batched(x), F.dropout(x, 0.5)])

    found = weft.vmap(twice, randomness="different")(torch.ones(3, 64)) != 0
    assert len({tuple(mask.tolist()) for mask in found.reshape(9, 64)}) == 9


def test_functions_may_draw_often() -> None:
    def often(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = F.dropout(x, 0.01) + torch.randn_like(x)
        return x

    x = torch.zeros(3000)
    value = weft.vmap(often, randomness="different")(x)
    assert abs(value.std().item() - 30**0.5) < 0.5
    assert weft.grad(lambda x: often(x).sum())(x).mean() > 0.5
