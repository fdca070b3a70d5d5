"""Singular values and eigenvalues are asked of LAPACK without the vectors that nobody reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


def factorized(function: Callable[..., object], a: torch.Tensor) -> str:
    """The arguments of the one factorization in a compiled function, as its program states them."""
    explanation = weft.explain(function, a, options={"fallback": "quiet"})
    (line,) = (line for line in explanation.records[0].programs["graph"].splitlines() if "::_linalg_" in line)
    return line.replace("\\22", '"')


@pytest.mark.parametrize(
    "function",
    [torch.linalg.svdvals, lambda a: torch.linalg.svd(a, full_matrices=False)[1], lambda a: torch.linalg.cond(a)],
)
def test_singular_values(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    a = torch.randn(3, 5, 4)
    assert '"args":["#0",false,false]' in factorized(function, a)
    torch.testing.assert_close(torch.compile(function, backend="weft")(a), function(a))


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvalues(uplo: str) -> None:
    a = torch.randn(3, 5, 5)
    assert ',false],"kwargs"' in factorized(lambda a: torch.linalg.eigvalsh(a, uplo), a)
    compiled = torch.compile(lambda a: torch.linalg.eigvalsh(a, uplo), backend="weft")
    torch.testing.assert_close(compiled(a), torch.linalg.eigvalsh(a, uplo))


def test_vectors_that_are_read_are_made() -> None:
    a = torch.randn(3, 5, 5)
    assert ",false]" not in factorized(torch.linalg.eigh, a)


def test_gradients_of_values_have_their_vectors() -> None:
    a = torch.randn(5, 4, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    compiled = torch.compile(lambda a: torch.linalg.svdvals(a * 2).pow(2).sum(), backend="weft")
    compiled(a).backward()
    torch.linalg.svdvals(b * 2).pow(2).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
