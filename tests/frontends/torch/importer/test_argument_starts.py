"""Strided views of arguments from a place in their memory: compiled, and right where arguments begin elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError

FUNCTIONS = {
    "view": lambda x, y: (x.as_strided((2, 2), (1, 3), 2) * y).sin(),
    "copy": lambda x, y: torch.as_strided_copy(x.t(), (2, 2), (1, 3), 2) * y,
    "scatter": lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (1, 3), 2).sin(),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_from_a_place_in_an_arguments_memory_are_compiled(name: str) -> None:
    function, y = FUNCTIONS[name], torch.randn(2, 2, dtype=torch.float64)
    x, within = torch.randn(4, 3, dtype=torch.float64), torch.randn(20, dtype=torch.float64)[5:17].view(4, 3)
    compiled: Any = torch.compile(function, backend="weft", options={"strict": True})
    torch.testing.assert_close(compiled(x, y), function(x, y))
    with pytest.raises(UnsupportedError, match="begins at another place"):
        compiled(within, y)
    gradients: list[Any] = []
    for call in (compiled, function):
        given = [each.clone().requires_grad_() for each in (x, y)]
        gradients.append(torch.autograd.grad(call(*given).sum(), given))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_that_begin_elsewhere_run_as_torch_runs_them(name: str) -> None:
    function, y = FUNCTIONS[name], torch.randn(2, 2)
    compiled: Any = torch.compile(function, backend="weft", options={"fallback": "quiet"})
    for x in (torch.randn(4, 3), torch.randn(20)[5:17].view(4, 3), torch.randn(4, 3)):
        torch.testing.assert_close(compiled(x, y), function(x, y))
