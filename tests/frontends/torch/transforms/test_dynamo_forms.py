"""Functions at which Dynamo would stop, as it looks at data for them: they are compiled, with all that is derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional

from weft.errors import DataError, DataValueError

COUNTS, SHARES = torch.tensor([1, 2, 1, 0, 3, 1]), torch.tensor([0.5, 0.1, 0.0, 2.0, 1.0, 0.3], dtype=torch.float64)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cov": torch.cov,
    "cov of a row": lambda x: torch.cov(x[0], correction=0),
    "cov by counts": lambda x: torch.cov(x, fweights=COUNTS),
    "cov by shares": lambda x: torch.cov(x, correction=0, aweights=SHARES),
    "cov by both": lambda x: x.cov(fweights=COUNTS, aweights=SHARES),
    "corrcoef": lambda x: x.corrcoef(),
    "corrcoef of a row": lambda x: torch.corrcoef(x[0]),
    "combinations": lambda x: torch.combinations(x[0]),
    "combinations of three": lambda x: torch.combinations(x[1], 3, with_replacement=True),
    "gaussian_nll_loss": lambda x: functional.gaussian_nll_loss(x, 2 - x, x.abs() + 0.1),
    "gaussian_nll_loss of rows": lambda x: functional.gaussian_nll_loss(x, 2 - x, x[:, 0] ** 2, full=True, eps=0.01),
    "gaussian_nll_loss of a number": lambda x: functional.gaussian_nll_loss(x, 2 - x, 0.5, reduction="none"),
}


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="weft", fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_goes_on_where_data_would_be_looked_at(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    mine, eager = _compiled(function)(x), function(x)
    torch.testing.assert_close(mine, eager)
    seed = torch.randn_like(eager)
    found, expected = (torch.autograd.grad(each, x, seed)[0] for each in (mine, eager))
    torch.testing.assert_close(found, expected)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """One function is compiled in many ways here, more than Dynamo allows of one that is called in many ways."""
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["cov", "combinations", "gaussian_nll_loss"])
def test_derivatives_and_batches_stay_compiled(name: str) -> None:
    function = FUNCTIONS[name]
    x, tangent = torch.randn(2, 3, 6, dtype=torch.float64)
    mine = torch.func.jvp(_compiled(function), (x,), (tangent,))
    torch.testing.assert_close(mine, torch.func.jvp(function, (x,), (tangent,)))
    batch = torch.stack([x, tangent])
    torch.testing.assert_close(torch.func.vmap(_compiled(function))(batch), torch.stack([*map(function, batch)]))


def test_data_that_eager_refuses_are_refused_with_the_line() -> None:
    x = torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(DataValueError, match="negative entry") as error:
        _compiled(lambda x: functional.gaussian_nll_loss(x, x, -x.abs()))(x)
    assert isinstance(error.value, ValueError) and __file__ in str(error.value)
    with pytest.raises(DataError, match="fweights cannot be negative"):
        _compiled(lambda x, n: torch.cov(x, fweights=n))(x, -COUNTS)
    with pytest.raises(DataError, match="sum to zero"):
        _compiled(lambda x, n: torch.cov(x, fweights=n))(x, 0 * COUNTS)


@pytest.mark.parametrize("variance", [1, COUNTS.expand(3, 6)], ids=["a number", "a tensor"])
def test_integers_are_no_variances(variance: Any) -> None:
    x = torch.randn(3, 6, dtype=torch.float64)
    loss: Callable[[Tensor], Tensor] = lambda x: functional.gaussian_nll_loss(x, x, variance)  # noqa: E731
    for call in (loss, torch.compile(loss, backend="weft")):
        with pytest.raises((TypeError, RuntimeError)):
            call(x)


@pytest.mark.parametrize("r", [0, 1, 2, 3])
@pytest.mark.parametrize("again", [False, True])
def test_combinations_of_a_symbolic_length(r: int, again: bool) -> None:
    compiled = torch.compile(
        lambda x: torch.combinations(x.repeat(2), r, with_replacement=again),
        backend="weft",
        fullgraph=True,
        dynamic=True,
        options={"strict": True},
    )
    for count in (2, 3, 5, 1, 0):
        x = torch.randn(count, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), torch.combinations(x.repeat(2), r, with_replacement=again))


def test_pairs_of_a_symbolic_length_are_compiled_once() -> None:
    compiled = torch.compile(torch.combinations, backend="weft", fullgraph=True, dynamic=True)
    counters["stats"].clear()
    for count in (5, 7, 300):
        x = torch.arange(float(count))
        torch.testing.assert_close(compiled(x), torch.combinations(x))
    assert counters["stats"]["unique_graphs"] == 1


def test_other_backends_see_what_torch_calls() -> None:
    x = torch.randn(3, 6)
    with pytest.raises(Exception, match="Data dependent"):
        torch.compile(torch.cov, backend="eager", fullgraph=True)(x)


def test_a_split_by_a_number_that_dynamo_has_read() -> None:
    x = torch.randn(6, 5, dtype=torch.float64)
    compiled = _compiled(lambda x, n: tuple(2 * part for part in torch.tensor_split(x, n)))
    for count in (2, 4):
        found = compiled(x, torch.tensor(count))
        torch.testing.assert_close(found, tuple(2 * part for part in x.tensor_split(count)))
    along = _compiled(lambda x, n: x.tensor_split(n, dim=1)[1])
    torch.testing.assert_close(torch.func.vmap(along, (0, None))(x.unsqueeze(0), torch.tensor(3)), x[None, :, 2:4])
