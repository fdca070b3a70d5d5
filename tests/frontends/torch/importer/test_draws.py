"""Random numbers are drawn by torch's generator, which is no fallback; choices by them are Weft's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.errors import DataError

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "normal": lambda p: (
        torch.normal(p, p),
        torch.normal(0.0, 1.0, (20,)),
        torch.randn(17),
        torch.empty(5).normal_(2, 3),
    ),
    "bernoulli": lambda p: (torch.bernoulli(p), torch.empty(9).bernoulli_(0.3), p.clone().bernoulli_(p)),
    "uniform": lambda p: (torch.rand(3), torch.rand_like(p), torch.empty(4, 5).uniform_(-1, 2)),
    "integers": lambda p: (torch.randint(2, 9, (7,)), torch.randperm(11), torch.empty(5).random_(6)),
    "others": lambda p: (
        torch.empty(6).exponential_(2.0),
        torch.empty(6).geometric_(0.3),
        torch.empty(6).log_normal_(),
        torch.empty(6).cauchy_(),
        torch.poisson(p * 4),
    ),
    "dropout": lambda p: (torch.native_dropout(p, 0.5, True), torch.dropout(p, 0.25, True)),
    "choices": lambda p: (torch.multinomial(p, 1), torch.multinomial(p[0], 3), torch.multinomial(p, 1, True)),
    "choices with replacement": lambda p: torch.multinomial(p.t(), 4, replacement=True),
    "choices of other types": lambda p: (torch.multinomial(p.double(), 2), torch.multinomial(p.bfloat16(), 1)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_eagers_and_no_fallbacks(name: str) -> None:
    torch.compiler.reset()
    p = torch.rand(4, 12)
    run = torch.compile(DRAWS[name], backend="weft", options={"strict": True, "cache": False})
    results: list[Any] = []
    for function in (DRAWS[name], run):
        torch.manual_seed(5)
        results.append((function(p), torch.rand(2)))  # what is drawn next shows how far the generator went
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def beside_zeros(x: Tensor, w: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Of zeros that are the memory to draw in, and of others, one is made: it stays as it is."""
    dropped = torch.nn.functional.alpha_dropout(x, 0.2, True)
    return torch.nn.functional.linear(dropped, w) + torch.nn.functional.linear(torch.zeros(2, 2), other), dropped


@pytest.mark.parametrize("grad", [False, True])
def test_where_numbers_are_drawn_nobody_else_reads(grad: bool) -> None:
    torch.compiler.reset()
    x, w, other = torch.randn(2, 2, requires_grad=grad), torch.randn(8, 2), torch.randn(8, 2)
    run = torch.compile(beside_zeros, backend="weft", options={"cache": False})
    results: list[Any] = []
    for function in (beside_zeros, run):
        torch.manual_seed(5)
        results.append(function(x, w, other))
    torch.testing.assert_close(results[1], results[0])


def test_draws_are_listed_with_what_others_do() -> None:
    torch.compiler.reset()
    found = weft.explain(lambda x: torch.bernoulli(x) + torch.randn(3), torch.rand(3))
    assert found.fallbacks == []
    assert {claim.library for record in found.records for claim in record.claims} == {"generator"}
    assert "0 library calls, 0 calls left to torch, 2 calls of torch's generator" in " ".join(str(found).split())


@pytest.mark.parametrize("wrong", [[0.5, -0.1], [0.5, float("nan")], [float("inf"), 1.0], [[0.5, 1], [0, 0]]])
def test_what_are_no_probabilities(wrong: Any) -> None:
    torch.compiler.reset()
    run = torch.compile(lambda p: torch.multinomial(p, 1), backend="weft", options={"cache": False})
    p = torch.tensor(wrong, dtype=torch.float32)
    assert run(p.nan_to_num(1, 1).abs() + 1).shape == (*p.shape[:-1], 1)
    with pytest.raises(RuntimeError):
        torch.multinomial(p, 1)
    with pytest.raises(DataError, match="probabilities"):
        run(p)
