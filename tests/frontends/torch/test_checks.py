"""Mistakes in data that eager finds while it runs are found, and named with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import DivisionError, PlaceError

X = torch.arange(12.0).reshape(4, 3)
at = torch.tensor

PLACES: dict[str, tuple[Callable[..., Any], Tensor, Tensor]] = {
    "embedding": (lambda i: F.embedding(i, X), at([0, 3]), at([0, 4])),
    "index": (lambda i: X[i], at([-4, 3]), at([-5])),
    "two indices": (lambda i: X[i, i], at([-3, 2]), at([3])),
    "index_select": (lambda i: X.index_select(1, i), at([2, 0]), at([-1])),
    "gather": (lambda i: X.gather(1, i), at([[2], [0]]), at([[3], [0]])),
    "take": (lambda i: X.take(i), at([-12, 11]), at([12])),
    "scatter": (lambda i: X.scatter(0, i, 1.0), at([[3, 0, 1]]), at([[4, 0, 1]])),
    "scatter_add": (lambda i: X.scatter_add(0, i, X[:1]), at([[3, 0, 1]]), at([[-1, 0, 1]])),
    "index_put": (lambda i: X.index_put((i,), X[0]), at([-1, 2]), at([7])),
    "index_add": (lambda i: X.index_add(0, i, X[:2]), at([1, 3]), at([1, 4])),
    "index_copy": (lambda i: X.index_copy(0, i, X[:2]), at([1, 3]), at([1, 4])),
    "cross_entropy": (lambda i: F.cross_entropy(X, i), at([0, 2, 1, -100]), at([0, 3, 1, 1])),
}


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    function, good, bad = PLACES[name]
    run = compiled(function)
    torch.testing.assert_close(run(good), function(good))
    with pytest.raises(IndexError, match=r"out of range.*\n.*test_checks.py:\d+"):
        run(bad)
    torch.testing.assert_close(run(good), function(good))


@pytest.mark.parametrize("function", [lambda a, b: a // b, lambda a, b: a % b, torch.fmod])
def test_integers_divided_by_zero(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    run = compiled(function)
    torch.testing.assert_close(run(at([7, -7]), at([2, 3])), function(at([7, -7]), at([2, 3])))
    with pytest.raises(DivisionError):
        run(at([7, -7]), at([2, 0]))


def test_floats_divided_by_zero() -> None:
    run = compiled(lambda a, b: a // b)
    assert run(torch.ones(2), torch.zeros(2)).isinf().all()


def test_training_and_symbolic_sizes() -> None:
    model = torch.nn.Embedding(5, 3)
    run = compiled(lambda i: model(i).sum())
    for count in (2, 3, 7):
        run(torch.arange(count) % 5).backward()
    with pytest.raises(PlaceError):
        run(at([1, 5, 0, 2]))
