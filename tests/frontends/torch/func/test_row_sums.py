"""Gradients of embeddings as a GPU has them: rows that are added by the library that sorts, also in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.frontends.torch.func import execute
from weft.runtime.record import recording

ROWS, TOKENS = 40, 24


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "_has_sorted_sums", lambda target, config: True)
    # What is compiled for a processor is not what the cache shall have.
    monkeypatch.setattr(execute, "_key", lambda *given: None)


def read(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(tokens, table).sin().pow(2).sum()


def calls(function: Callable[[], Any]) -> tuple[Any, int]:
    with recording() as records:
        found = function()
    claims = [claim for each in records for claim in each.claims]
    return found, sum(claim.uses for claim in claims if claim.op == "aten::embedding_dense_backward")


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, ROWS, shape)


@pytest.mark.parametrize("shape", [(TOKENS,), (3, 7), (2, 2, 9)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_of_a_table_is_one_call(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table, places = torch.randn(ROWS, 8, dtype=dtype), tokens(*shape)
    found, count = calls(lambda: weft.grad(read)(table, places))
    assert count == 1
    torch.testing.assert_close(found, torch.func.grad(read)(table.double(), places).to(dtype))


def test_a_batch_of_gradients_is_one_call_too() -> None:
    table, places = torch.randn(ROWS, 8, dtype=torch.float64), tokens(5, TOKENS)
    found, count = calls(lambda: weft.vmap(weft.grad(read), in_axes=(None, 0))(table, places))
    assert count == 1
    torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(read), (None, 0))(table, places))
    many = torch.randn(5, ROWS, 8, dtype=torch.float64)
    found, count = calls(lambda: weft.vmap(weft.grad(read))(many, places))
    assert count == 1
    torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(read))(many, places))


def test_products_with_the_second_derivative_are_right() -> None:
    table, places = torch.randn(ROWS, 4, dtype=torch.float64), tokens(TOKENS)
    direction = torch.randn_like(table)
    product = lambda t: t.jvp(lambda table: t.grad(read)(table, places), (table,), (direction,))[1]  # noqa: E731
    torch.testing.assert_close(product(weft.func), product(torch.func))


def test_padding_and_places_from_the_end_stay_right() -> None:
    def padded(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(places, table, padding_idx=3).exp().sum() + table[places - ROWS].sum()

    table, places = torch.randn(ROWS, 4, dtype=torch.float64), tokens(TOKENS)
    found, count = calls(lambda: weft.grad(padded)(table, places))
    assert count >= 1
    torch.testing.assert_close(found, torch.func.grad(padded)(table, places))


def test_few_updates_and_none_are_left_to_a_kernel() -> None:
    table = torch.randn(ROWS, 4, dtype=torch.float64)
    for places in (tokens(3), tokens(0)):
        found, count = calls(lambda places=places: weft.grad(read)(table, places))
        assert not count
        torch.testing.assert_close(found, torch.func.grad(read)(table, places))
