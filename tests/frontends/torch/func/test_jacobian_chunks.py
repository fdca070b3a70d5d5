"""`jacrev(chunk_size=...)`: the rows of a Jacobian some at a time, from one forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from weft.func import jacrev

WEIGHTS = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
X = torch.randn(5, 3, dtype=torch.float64)


def layer(weights: dict[str, torch.Tensor], x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
    hidden = torch.tanh(x @ weights["a"] + weights["b"]) * scale
    return {"rows": hidden.cumsum(0), "total": hidden.sum(), "none": hidden[:0]}


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("argnums", [0, 1, (1, 0)])
def test_chunks_are_the_whole(chunk: int, argnums: int | tuple[int, ...]) -> None:
    found = jacrev(layer, argnums, chunk_size=chunk)(WEIGHTS, X, scale=2.0)
    torch.testing.assert_close(found, torch.func.jacrev(lambda w, x: layer(w, x, scale=2.0), argnums)(WEIGHTS, X))


def test_what_is_beside_the_value_is_that_of_one_call() -> None:
    place = torch.tensor([2, 0])  # integers are among the arguments
    found, aux = jacrev(lambda x, place: (x[place].sin(), x.sum()), has_aux=True, chunk_size=2)(X[:, 0], place)
    torch.testing.assert_close(found, torch.func.jacrev(lambda x: x[place].sin())(X[:, 0]))
    torch.testing.assert_close(aux, X[:, 0].sum())


def test_chunks_of_nothing_and_inside_of_other_transformations() -> None:
    assert jacrev(lambda x: x[:0] * 2, chunk_size=2)(X).shape == (0, 3, 5, 3)
    rows = weft.vmap(jacrev(torch.sin, chunk_size=np.int64(2)))(X)
    torch.testing.assert_close(jacrev(torch.sin, chunk_size=np.int64(2))(X[0]), torch.diag(X[0].cos()))
    torch.testing.assert_close(rows, torch.diag_embed(X.cos()))


def test_all_chunks_have_the_random_numbers_of_one_forward_pass() -> None:
    found = jacrev(lambda x: F.dropout(x, 0.5, True), chunk_size=3)(torch.ones(32))
    mixed = jacrev(lambda x: F.dropout(x, 0.5, True).sum() + 0 * x, chunk_size=3)(torch.ones(32))
    assert set(found.diagonal().tolist()) == {0.0, 2.0} and torch.equal(found, torch.diag(found.diagonal()))
    assert torch.equal(mixed, mixed[:1].expand(32, 32))


@pytest.mark.parametrize("chunk", [0, -1, 1.5])
def test_bad_numbers_of_rows_are_errors(chunk: Any) -> None:
    with pytest.raises(weft.WeftError, match="chunk_size"):
        jacrev(torch.sin, chunk_size=chunk)


def test_complex_jacobians_are_refused_in_chunks_too() -> None:
    with pytest.raises(weft.DTypeError, match="complex"):
        jacrev(torch.exp, chunk_size=2)(torch.randn(3, dtype=torch.complex64))
