"""What ops take beside their operands and results: nothing of the size of these where eager takes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import weft
from weft.ir.expr import evaluate, product

N = 1 << 16
OPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "medians of lines": lambda x: torch.median(x.view(16, -1), 1),
    "an element of a rank": lambda x: torch.kthvalue(x, 77),
    "a strided part that is replaced": lambda x: torch.as_strided_scatter(x, x[:3] * 2, (3,), (5,), 0),
    "a series": torch.special.i0,
    "circular padding": lambda x: torch.nn.functional.pad(x.view(1, 1, -1), (1, 2), mode="circular"),
    "a histogram": torch.histc,
}


def taken(function: Callable[..., Any], *tensors: torch.Tensor) -> int:
    """Bytes of temporaries, and of constants that are made once."""
    torch.compiler.reset()
    (record,) = weft.explain(function, *tensors).records
    assert record.plan is not None and not record.fallbacks
    constants = [buffer.tensor for buffer in record.plan.buffers if buffer.role == "constant"]
    return max(record.arenas.values()) + sum(evaluate(product(each.shape), {}) * each.dtype.bytes for each in constants)


@pytest.mark.parametrize("name", OPS)
def test_temporaries_are_less_than_half_of_the_operand(name: str) -> None:
    assert taken(OPS[name], torch.randn(N)) < 2 * N


SERIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeta": lambda x: torch.special.zeta(x + 1, x),
    "igamma": lambda x: torch.igamma(x, 2 - x),
    "a polynomial": lambda x: torch.special.laguerre_polynomial_l(x, (x * 40).to(torch.int64)),
}


@pytest.mark.parametrize("name", SERIES)
def test_series_of_as_many_terms_as_elements_need_take_no_more_for_long_tensors(name: str) -> None:
    function, x = SERIES[name], torch.rand(9 * N + 5) + 0.1
    assert taken(function, x) < 512 * N  # a few values of a part, in float64, and the results of all parts
    found = torch.compile(function, backend="weft", dynamic=False)(x)
    torch.testing.assert_close(found, function(x), rtol=1e-5, atol=1e-5)


LINES = (1 << 20) + 3
CHOICES: dict[str, Callable[[torch.Tensor], Any]] = {
    "the greatest": lambda x: torch.topk(x, 2),
    "the least, along a dimension before the last": lambda x: torch.topk(x.view(-1, 2, 2), 1, dim=1, largest=False),
    "the most frequent": lambda x: torch.mode(x, keepdim=True),
    "one of a rank": lambda x: x.kthvalue(3),
    "medians": lambda x: x.median(1),
    "solutions": lambda x: torch.linalg.lu_solve(FACTORS, PIVOTS, x.mT),
    "reflections": lambda x: torch.linalg.householder_product(x, torch.ones(2)),
    "reflections of many": lambda x: torch.linalg.householder_product(x.view(-1, 2, 2), torch.ones(1).expand(LINES, 2)),
}
FACTORS, PIVOTS = torch.linalg.lu_factor(torch.rand(4, 4, dtype=torch.float64).add(torch.eye(4)).float())


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_computed_of_many_lines_is_computed_of_some_after_the_other(name: str) -> None:
    function, x = CHOICES[name], torch.rand(LINES, 4).argsort(1).float()  # without ties
    assert taken(function, x) < 2 * x.numel() * x.itemsize  # results that wait for others are temporaries, too
    found, expected = torch.compile(function, backend="weft", dynamic=False)(x), function(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert [each.stride() for each in pytree.tree_leaves(found)] == [
        each.stride() for each in pytree.tree_leaves(expected)
    ]


def test_a_batch_of_matrices_that_are_long_by_themselves_is_computed_at_once() -> None:
    factors, pivots = torch.linalg.lu_factor(torch.randn(2, 2, 2) + 3 * torch.eye(2))
    columns = torch.randn(2, 2, (1 << 21) + 8)
    solve = torch.compile(lambda *given: torch.linalg.lu_solve(*given), backend="weft", options={"cache": False})
    torch.testing.assert_close(solve(factors, pivots, columns), torch.linalg.lu_solve(factors, pivots, columns))


@pytest.mark.parametrize("left", [True, False])
def test_solutions_of_a_long_batch_lie_in_memory_as_eager_has_them(left: bool) -> None:
    factors, pivots = torch.linalg.lu_factor(torch.rand(LINES, 2, 2) + 2 * torch.eye(2))
    b = torch.rand(LINES, 2, 2)

    def solve(*given: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lu_solve(*given, left=left)

    found = torch.compile(solve, backend="weft", dynamic=False)(factors, pivots, b)
    expected = solve(factors, pivots, b)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.stride() == expected.stride()
