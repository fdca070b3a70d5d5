"""Rows that were sorted are added up where they came from."""

from __future__ import annotations

import pytest
import torch

TOKENS, ROWS, WIDTH = 4, 3, 5


@pytest.mark.parametrize("shape", [(), (WIDTH,), (1, WIDTH), (TOKENS * ROWS, 1), (TOKENS * ROWS, WIDTH)])
def test_values_are_spread_over_all_rows(shape: tuple[int, ...]) -> None:
    def combine(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((keys.argsort() // ROWS,), values, accumulate=True)

    torch._dynamo.reset()
    inputs = torch.randn(TOKENS, WIDTH), torch.randperm(TOKENS * ROWS), torch.randn(shape)
    found = torch.compile(combine, backend="weft", options={"strict": True, "cache": False})(*inputs)
    torch.testing.assert_close(found, combine(*inputs))
