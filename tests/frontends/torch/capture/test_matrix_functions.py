"""Functions of factored matrices, and fractional pooling: in a graph without torch's calls, and what eager gives."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from weft.errors import DataError


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="weft", options={"fallback": "error"})


def test_solves_with_factors() -> None:
    a, b = (torch.randn(3, 5, n, dtype=torch.float64) for n in (5, 2))
    lu, pivots = torch.linalg.lu_factor(a)
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(5, dtype=torch.float64))

    def solved(lu: Tensor, pivots: Tensor, factor: Tensor, b: Tensor) -> list[Tensor]:
        found = [
            torch.linalg.lu_solve(lu, pivots, b if left else b.mT, left=left, adjoint=adjoint)
            for left, adjoint in product((True, False), repeat=2)
        ]
        found += [torch.cholesky_solve(b, factor), torch.cholesky_solve(b, factor.mT, upper=True)]
        found += [torch.cholesky_inverse(factor), torch.cholesky_inverse(factor.mT, upper=True)]
        for upper, turned in product((True, False), repeat=2):
            found += torch.triangular_solve(b, lu, upper=upper, transpose=turned)
        return found

    given = lu, pivots, factor, b
    torch.testing.assert_close(compiled(solved)(*given), solved(*given))


def test_small_triangles_are_solved_without_libraries() -> None:
    a, b = torch.randn(7, 7, dtype=torch.float64) + 9 * torch.eye(7), torch.randn(3, 7, 2, dtype=torch.float64)

    def solved(a: Tensor, b: Tensor) -> list[Tensor]:
        return [
            torch.linalg.solve_triangular(a, b if left else b.mT, upper=upper, left=left, unitriangular=unit)
            for upper, left, unit in product((True, False), repeat=3)
        ]

    strict = torch.compile(solved, backend="weft", options={"strict": True})
    torch.testing.assert_close(strict(a, b), solved(a, b))
    rows = [solved(a, each) for each in b]
    batched = torch.func.vmap(strict, (None, 0))(a, b)
    torch.testing.assert_close(batched, [torch.stack(each) for each in zip(*rows, strict=True)])
    empty = strict(a[:0, :0], b[:, :0])
    assert [each.shape for each in empty] == [each.shape for each in solved(a[:0, :0], b[:, :0])]


def test_small_matrices_are_factored_and_exponentiated_without_libraries() -> None:
    a = torch.randn(3, 6, 6, dtype=torch.float64)
    square = a @ a.mT + torch.eye(6)

    def factored(square: Tensor, a: Tensor) -> list[Tensor]:
        found = [torch.cholesky(square), torch.cholesky(square, upper=True), *torch.linalg.cholesky_ex(square)]
        return [*found, torch.linalg.matrix_exp(a), torch.linalg.matrix_exp(9 * a[0]), torch.linalg.matrix_exp(a / 99)]

    strict = torch.compile(factored, backend="weft", options={"strict": True})
    torch.testing.assert_close(strict(square, a), factored(square, a))
    rows = [factored(one, a) for one in square]
    batched = torch.func.vmap(strict, (0, None))(square, a)
    torch.testing.assert_close(batched, [torch.stack(each) for each in zip(*rows, strict=True)])


def test_matrices_that_are_not_positive_are_told() -> None:
    a = torch.eye(4, dtype=torch.float64)
    a[2, 2] = -1
    strict = torch.compile(torch.linalg.cholesky_ex, backend="weft", options={"strict": True})
    torch.testing.assert_close(tuple(strict(a)), tuple(torch.linalg.cholesky_ex(a)))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite") as told:
        torch.compile(torch.cholesky, backend="weft", options={"strict": True})(a)
    assert isinstance(told.value, DataError)


def test_factors_are_unpacked_and_reflections_multiplied() -> None:
    tall, wide = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    packed = [each for a in (tall, wide) for each in torch.linalg.lu_factor(a)]
    reflections, tau = torch.geqrf(tall)

    def parts(lu: Tensor, pivots: Tensor, other: Tensor, others: Tensor, a: Tensor, tau: Tensor) -> list[Tensor]:
        found = [*torch.lu_unpack(lu, pivots), *torch.lu_unpack(other, others)]
        found.append(torch.linalg.householder_product(a, tau))
        for left, turned in product((True, False), repeat=2):
            found.append(torch.ormqr(a, tau, a if left else a.mT, left=left, transpose=turned))
        return found

    given = *packed, reflections, tau
    torch.testing.assert_close(compiled(parts)(*given), parts(*given))


def test_pivots_are_looked_at_where_there_is_something_to_solve() -> None:
    lu, pivots = torch.linalg.lu_factor(torch.randn(3, 3))
    solved: Any = lambda lu, pivots, b: torch.linalg.lu_solve(lu, pivots, b)  # noqa: E731
    for call in (solved, compiled(solved)):
        assert call(lu, pivots - 4, torch.ones(3, 0)).shape == (3, 0)
        with pytest.raises(RuntimeError):
            call(lu, pivots - 4, torch.ones(3, 2))


def test_too_few_pivots_are_torchs_to_refuse() -> None:
    lu, pivots = torch.linalg.lu_factor(torch.randn(4, 4))
    unpacked: Any = lambda lu, pivots: torch.lu_unpack(lu, pivots)  # noqa: E731
    with pytest.raises(BackendCompilerFailed, match="lu_unpack"):
        compiled(unpacked)(lu, pivots[:3])


def test_fractional_pools_and_their_gradients() -> None:
    def pooled(flat: Tensor, deep: Tensor, samples: Tensor, more: Tensor) -> list[Tensor]:
        first = F.fractional_max_pool2d(flat, 2, output_size=(4, 3), _random_samples=samples)
        return [first, F.fractional_max_pool3d(deep, 2, output_size=(1, 4, 3), _random_samples=more)]

    flat, deep = (torch.randn(2, 3, *sizes).requires_grad_() for sizes in ((9, 7), (4, 9, 7)))
    given = flat, deep, torch.rand(2, 3, 2), torch.rand(2, 3, 3)
    mine, eager = compiled(pooled)(*given), pooled(*given)
    torch.testing.assert_close(mine, eager)
    gradients = [torch.autograd.grad([x.pow(2).sum() for x in each], (flat, deep)) for each in (mine, eager)]
    torch.testing.assert_close(*gradients)
