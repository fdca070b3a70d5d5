"""What `no_grad` stops, gradients, and `inference_mode` and `detach`, tangents as well: as in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.func as reference

import weft

X, STEP = torch.tensor([0.3, 0.7, -1.1], dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def kept(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        square = x * x
    return square * x.sin()


def turned(x: torch.Tensor) -> torch.Tensor:
    """Through complex numbers, and with a value that is cut as well."""
    with torch.no_grad():
        square = torch.complex(x, x * x).conj() * x.detach()
    return torch.view_as_real(square * x).sum(-1)


def inferred(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        square = x * x
    return square * x.sin()


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with torch.no_grad():
        y.mul_(2).add_(x)
        y[1] = y[0] * x[2]
    return y * x


def written_through_views(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with torch.no_grad():
        row = y.view(3, 1)
        row[1].mul_(3)
        y[:2].view(2, 1).add_(x[:1])
    return y * x


def written_where_it_is_no_number(x: torch.Tensor) -> torch.Tensor:
    y = x / (x - x[0])
    with torch.no_grad():
        y[~y.isfinite()] = 0.5
    return torch.where(x == x[0], y.detach(), y) * x


def written_complex(x: torch.Tensor) -> torch.Tensor:
    y = torch.complex(x, x.cos())
    with torch.no_grad():
        y.mul_(2j)
    return torch.view_as_real(y * x).sum(-1)


@pytest.mark.parametrize("function", [written, written_through_views, written_where_it_is_no_number, written_complex])
def test_what_is_written_under_no_grad_keeps_its_gradient(function: Any) -> None:
    def of(t: Any) -> Any:
        return t.vjp(function, X)[0], t.vjp(function, X)[1](STEP), t.jvp(function, (X,), (STEP,))

    torch.testing.assert_close(of(weft.func), of(reference), equal_nan=True)


@pytest.mark.parametrize("function", [kept, turned])
def test_tangents_pass_no_grad_and_gradients_do_not(function: Any) -> None:
    def of(t: Any) -> Any:
        gradient = t.grad(lambda x: function(x).sum())
        return (
            t.jvp(function, (X,), (STEP,)),
            gradient(X),
            t.jvp(gradient, (X,), (STEP,)),
            t.grad(lambda x: gradient(x).sum())(X),
        )

    torch.testing.assert_close(of(weft.func), of(reference))


def test_tangents_do_not_pass_inference_mode() -> None:
    found, expected = (t.jvp(inferred, (X,), (STEP,)) for t in (weft.func, reference))
    torch.testing.assert_close(found, expected)
