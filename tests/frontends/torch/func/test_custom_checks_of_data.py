"""Functions with rules of their own around what may fail for some data: indices, and matrices to invert."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import weft
import weft.func

X = torch.randn(4, 4, dtype=torch.float64) + 5 * torch.eye(4, dtype=torch.float64)
PLACES = torch.tensor([2, 0, 2])
FUNCTIONS = {
    "index": lambda x: x[PLACES],
    "gather": lambda x: x.gather(1, PLACES[:, None]),
    "embedding": lambda x: torch.nn.functional.embedding(PLACES, x),
    "index_add": lambda x: x.index_add(0, PLACES, x[:3]),
    "inv": torch.linalg.inv,
    "det and solve": lambda x: torch.linalg.solve(x, torch.ones(4, 1).double()) * torch.linalg.det(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_such_functions_have_rules(name: str) -> None:
    inner = FUNCTIONS[name]
    f = weft.func.custom(inner, vjp=lambda grads, args, results: (grads.sum() * args[0].cos(),))

    def total(x: Tensor) -> Tensor:
        return f(x).sin().sum()

    expected = inner(X).cos().sum() * X.cos()
    torch.testing.assert_close(weft.grad(total)(X), expected)
    torch.testing.assert_close(weft.vmap(weft.grad(total))(torch.stack([X, X.mT]))[0], expected)
    torch.testing.assert_close(weft.vmap(f)(torch.stack([X, X.mT]))[0], inner(X))


def test_rules_may_index_and_invert() -> None:
    f = weft.func.custom(torch.sin, vjp=lambda grads, args, results: (grads * torch.linalg.inv(args[0])[PLACES[:1]],))
    row = torch.linalg.inv(X)[2:3]
    torch.testing.assert_close(weft.grad(lambda x: f(x).sum())(X), row.expand(4, 4))
    torch.testing.assert_close(weft.jvp(f, (X,), (X,))[1], X * row)


def picked(x: Tensor, places: Tensor) -> Tensor:
    return x.index_select(0, places)


PICKED = weft.func.custom(picked, vjp=lambda grads, args, results: (torch.zeros_like(args[0]) + grads.sum(), None))
OUT_OF_RANGE = {
    "grad": lambda x: weft.grad(lambda x: PICKED(x, torch.tensor([1, 9])).sum())(x),
    "vmap": lambda x: weft.vmap(PICKED, (None, 0))(x, torch.tensor([[1, 2], [1, 7]])),
    "vmap of grad": lambda x: weft.vmap(weft.grad(lambda x: PICKED(x, torch.tensor([9])).sum()))(x[None]),
    "jvp": lambda x: weft.jvp(lambda x: PICKED(x, torch.tensor([9])), (x,), (x,)),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_is_an_error_of_the_call(name: str) -> None:
    with pytest.raises(weft.errors.PlaceError, match="out of range") as error:
        OUT_OF_RANGE[name](X)
    assert "test_custom_checks_of_data.py" in str(error.value)


def test_an_index_out_of_range_in_a_rule_gives_nan() -> None:
    f = weft.func.custom(torch.sin, vjp=lambda grads, args, results: (grads * args[0][torch.tensor([9])],))
    assert weft.grad(lambda x: f(x).sum())(X).isnan().all()


def test_batching_rules_look_at_their_data_where_the_function_does() -> None:
    f = weft.func.custom(picked, batch=lambda size, batched, args: args[0].index_select(1, args[1]))
    many = torch.stack([X, X.mT])
    torch.testing.assert_close(weft.vmap(f, (0, None))(many, PLACES), many[:, PLACES])
    with pytest.raises(weft.errors.PlaceError, match="out of range"):
        weft.vmap(f, (0, None))(many, PLACES + 3)
    g = weft.func.custom(torch.sin, batch=lambda size, batched, args: args[0].index_select(0, torch.arange(size)).sin())
    with pytest.raises(weft.UnsupportedError, match=r"looks at its data|reads tensors"):
        weft.vmap(g)(many)
