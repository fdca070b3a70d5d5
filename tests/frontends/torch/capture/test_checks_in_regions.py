"""Calls that fail for some data inside of branches and turns: they are compiled there, and fail as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention.flex_attention import flex_attention

import weft
from weft.errors import PlaceError

PLACES = torch.tensor([0, 4, 2])
BEYOND = torch.tensor([0, 5, 2])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="weft", options={"fallback": "error", "strict": True})


def branch(going: torch.Tensor, places: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.cond(going, lambda n, t: t[n] * 2, lambda n, t: t[n + 1].sin(), (places, table))


def turns(places: torch.Tensor, table: torch.Tensor) -> Any:
    def turn(total: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = total * 0.5 + table.index_select(0, place.reshape(1))[0]
        return new, new.clone()

    return scan(turn, torch.zeros(3, dtype=torch.float64), places)


def test_a_branch_fails_where_it_is_taken() -> None:
    table, call = torch.randn(5, 3, dtype=torch.float64), compiled(branch)
    torch.testing.assert_close(call(torch.tensor(True), PLACES, table), table[PLACES] * 2)
    torch.testing.assert_close(call(torch.tensor(False), PLACES - 1, table), table[PLACES].sin())
    for going, places in ((True, BEYOND), (False, PLACES)):
        with pytest.raises(PlaceError, match="out of range"):
            call(torch.tensor(going), places, table)


def test_a_scan_fails_for_any_of_its_turns() -> None:
    table, call = torch.randn(5, 3, dtype=torch.float64), compiled(turns)
    torch.testing.assert_close(call(PLACES, table), turns(PLACES, table))
    with pytest.raises(PlaceError, match="out of range"):
        call(BEYOND, table)


def test_a_while_loop_ends_where_it_fails() -> None:
    def search(table: torch.Tensor, first: torch.Tensor) -> Any:
        def going(place: torch.Tensor) -> torch.Tensor:
            return table.index_select(0, place.reshape(1))[0] >= 0

        return while_loop(going, lambda place: (place + 1,), (first,))

    call, table = compiled(search), torch.tensor([1.0, 2.0, -1.0, 3.0, 4.0])
    assert call(table, torch.tensor(0))[0].item() == 2
    with pytest.raises(PlaceError, match="out of range"):
        call(table, torch.tensor(3))  # nothing negative follows: in eager, the fifth index is an error


def test_gradients_and_batches_of_regions_that_fail() -> None:
    table = torch.randn(5, 3, dtype=torch.float64)

    def loss(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return turns(places, table)[0].pow(2).sum()

    def unrolled(table: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3, dtype=torch.float64)
        for place in PLACES:
            total = total * 0.5 + table[place]
        return total.pow(2).sum()

    torch.testing.assert_close(weft.grad(loss)(table, PLACES), torch.func.grad(unrolled)(table))
    with pytest.raises(PlaceError, match="out of range"):
        weft.grad(loss)(table, BEYOND)
    batched = weft.vmap(branch, in_axes=(0, 0, None))
    found = batched(torch.tensor([True, False]), torch.stack([PLACES, PLACES - 1]), table)
    torch.testing.assert_close(found, torch.stack([table[PLACES] * 2, table[PLACES].sin()]))


def test_flex_attention_in_a_branch() -> None:
    def near(query: Any, key: Any, value: Any) -> torch.Tensor:
        return flex_attention(query, key, value, lambda score, b, h, i, j: score + 0.1 * (i - j))

    def call(going: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cond(going, near, lambda query, key, value: query * 2, tensors)

    query, key, value = (torch.randn(1, 2, 17, 8) for _ in range(3))
    made = compiled(call)
    places = torch.arange(17)
    scores = (query @ key.mT).double() / 8**0.5 + 0.1 * (places[:, None] - places)
    exact = (scores.softmax(-1) @ value.double()).float()
    torch.testing.assert_close(made(torch.tensor(True), query, key, value), exact)
    torch.testing.assert_close(made(torch.tensor(False), query, key, value), query * 2)
