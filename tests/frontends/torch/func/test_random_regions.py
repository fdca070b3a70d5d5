"""Random numbers inside of branches and turns of transformed functions: drawn from the seed of the call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan

import weft


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > -1e9, lambda x: F.dropout(x * x, 0.5, True), lambda x: x * 3, (x,))


def test_dropout_in_a_branch_has_gradients_and_tangents() -> None:
    x = torch.randn(400, dtype=torch.float64)
    value, gradient = weft.func.value_and_grad(lambda x: dropped(x).sum())(x)
    kept = gradient != 0
    assert 0.35 < kept.double().mean() < 0.65
    torch.testing.assert_close(gradient, 4 * x * kept)
    torch.testing.assert_close(value, (2 * x * x * kept).sum())
    value, tangent = weft.jvp(dropped, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, 4 * x * (value != 0))


def test_calls_and_samples_draw_other_numbers() -> None:
    one = torch.ones(64)
    torch.manual_seed(0)
    function = weft.func.vjp(dropped, one)[0]
    assert not torch.equal(function, weft.func.vjp(dropped, one)[0])
    torch.manual_seed(0)
    assert torch.equal(function, weft.func.vjp(dropped, one)[0])
    different = weft.vmap(dropped, randomness="different")(torch.ones(3, 64))
    assert not torch.equal(different[0], different[1])
    same = weft.vmap(dropped, randomness="same")(torch.ones(3, 64))
    assert torch.equal(same[0], same[1])


def test_every_turn_draws_its_own() -> None:
    def turns(x: torch.Tensor) -> torch.Tensor:
        return scan(lambda total, row: (total + row, F.dropout(row, 0.5, True)), torch.zeros(64), x)[1]

    x = torch.ones(5, 64)
    found, pull = weft.vjp(turns, x)
    assert not any(torch.equal(found[n], found[n + 1]) for n in range(4))
    torch.testing.assert_close(pull(x)[0], found)


def test_jacobians_are_of_one_draw_of_random_numbers() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * x, 0.5, True)

    x = torch.rand(32) + 0.5
    for jacobian in (weft.func.jacrev(dropped)(x), weft.func.jacfwd(dropped, randomness="same")(x)):
        diagonal = jacobian.diagonal()
        assert torch.equal(jacobian, torch.diag(diagonal))
        kept = diagonal != 0
        assert 0 < kept.sum() < 32
        torch.testing.assert_close(diagonal[kept], 4 * x[kept])
    with pytest.raises(weft.UnsupportedError, match="tangents of a function that draws random numbers"):
        weft.func.jacfwd(dropped)(x)
