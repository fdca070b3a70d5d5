"""Random numbers of compiled functions that torch transforms: those of eager, and the generator goes on as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.seeds import generator


def dropped(x: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x) * x).sum()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, x: torch.func.grad(f)(x[0]),
        lambda f, x: torch.func.jvp(f, (x[0],), (x[1],))[1],
        lambda f, x: torch.func.vmap(f, randomness="different")(x),
        lambda f, x: torch.func.vmap(torch.func.grad(f), randomness="same")(x),
        lambda f, x: torch.func.grad(lambda y: torch.func.grad(f)(y).sum())(x[0]),
    ],
    ids=["grad", "jvp", "different", "same", "second"],
)
def test_numbers_are_those_of_eager(transformed: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    x = torch.from_numpy(generator().standard_normal((3, 7)))
    compiled = torch.compile(dropped, backend="weft", options={"fallback": "error"})
    drawn: list[list[torch.Tensor]] = []
    for function in (dropped, compiled):
        torch.manual_seed(3)
        drawn.append([transformed(function, x), transformed(function, x), torch.rand(1)])
    torch.testing.assert_close(drawn[1], drawn[0])
