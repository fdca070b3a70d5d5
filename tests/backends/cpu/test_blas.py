"""Products that the BLAS library carries out: every way a matrix may lie, and matrices without elements."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("k", [0, 1, 7])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_products(k: int, turned: tuple[bool, bool], capfd: pytest.CaptureFixture[str]) -> None:
    a, b = torch.randn((k, 3) if turned[0] else (3, k)), torch.randn((5, k) if turned[1] else (k, 5))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.mT if turned[0] else a) @ (b.mT if turned[1] else b)

    torch.compiler.reset()
    compiled = torch.compile(product, backend="weft", options={"cache": False})
    for _ in range(2):
        torch.testing.assert_close(compiled(a, b), product(a, b))
    assert "illegal value" not in capfd.readouterr().err
