"""Torch's control flow under gradients, gradients of gradients, tangents and batches, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan
from torch.func import grad, jvp, vmap

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives

X, W = torch.linspace(-1, 1.3, 20).reshape(5, 4), torch.linspace(-0.4, 0.5, 16).reshape(4, 4)


def turns(x: Tensor, w: Tensor) -> Tensor:
    state, rows = scan(lambda state, row: ((state @ w + row).tanh(), state * 2), x[0] * 0.5, x)
    return state.sum() + (rows**2).sum()


def turns_written_out(x: Tensor, w: Tensor) -> Tensor:
    state, rows = x[0] * 0.5, list[Tensor]()
    for row in x:
        rows.append(state * 2)
        state = (state @ w + row).tanh()
    return state.sum() + (torch.stack(rows) ** 2).sum()


def nested(x: Tensor, w: Tensor) -> Tensor:
    def turn(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        inner, _ = scan(lambda one, y: ((one * w[0] + y).sin(), one * 2), state, x * row)
        return inner, inner * state

    state, rows = scan(turn, x[0] * 0.5, x)
    return (state * rows).sum()


def nested_written_out(x: Tensor, w: Tensor) -> Tensor:
    state, rows = x[0] * 0.5, list[Tensor]()
    for row in x:
        inner = state
        for y in x * row:
            inner = (inner * w[0] + y).sin()
        rows.append(inner * state)
        state = inner
    return (state * torch.stack(rows)).sum()


def branch(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: (x @ w).tanh(), lambda x: (x @ w).sin() * 2, (x,)).sum()


def branch_written_out(x: Tensor, w: Tensor) -> Tensor:
    return torch.where(x.sum() > 0, (x @ w).tanh(), (x @ w).sin() * 2).sum()


def rows(x: Tensor, w: Tensor) -> Tensor:
    return map_rows(lambda row, w: (row @ w).tanh(), x, w).pow(2).sum()


def rows_written_out(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().pow(2).sum()


def trained(function: Callable[..., Any]) -> Any:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    return torch.autograd.grad(function(x, w), (x, w))


def twice(function: Callable[..., Any]) -> Any:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    first = torch.autograd.grad(function(x, w), (x, w), create_graph=True)
    return torch.autograd.grad(first[0].pow(2).sum() + first[1].pow(2).sum(), (x, w))


MODES: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "trained": trained,
    "gradient of gradient": twice,
    "grad": lambda f: grad(f)(X, W),
    "jvp": lambda f: jvp(f, (X, W), (X, W)),
    "vmap": lambda f: vmap(f, (0, None))(torch.stack([X, X + 1]), W),
}
FUNCTIONS = {
    turns: turns_written_out,
    nested: nested_written_out,
    branch: branch_written_out,
    rows: rows_written_out,
}


@pytest.mark.parametrize(
    "mode", [pytest.param(name, marks=needs_second_derivatives if run is twice else ()) for name, run in MODES.items()]
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_control_flow_is_what_is_written_out(function: Callable[..., Any], mode: str) -> None:
    torch.compiler.reset()
    run = torch.compile(function, backend="weft", options={"fallback": "error"})
    found, expected = MODES[mode](run), MODES[mode](FUNCTIONS[function])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
