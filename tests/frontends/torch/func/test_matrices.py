"""Factorisations and solutions of matrices under transformations, against those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func as reference

import weft

N = 4


def matrices(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return drawn + 3 * torch.eye(shape[-2], shape[-1], dtype=torch.float64)


B = matrices(N, 3, seed=1)
LINALG: Any = torch.linalg


def positive(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mT + torch.eye(N, dtype=a.dtype)


def vectors(v: torch.Tensor) -> torch.Tensor:
    """What the signs of vectors do not change."""
    return (v * v).cumsum(-1)


SQUARE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "solve": lambda a: LINALG.solve(a, B),
    "solve of a vector": lambda a: LINALG.solve(a, B[:, 0]),
    "solve from the right": lambda a: LINALG.solve(a, B.mT, left=False),
    "solve of both": lambda a: LINALG.solve(a, a.sin()),
    "inv": LINALG.inv,
    "inverse": torch.inverse,
    "det": LINALG.det,
    "logdet": lambda a: torch.logdet(positive(a)),
    "slogdet": lambda a: LINALG.slogdet(a)[1],
    "cholesky": lambda a: LINALG.cholesky(positive(a)),
    "upper cholesky": lambda a: LINALG.cholesky(positive(a), upper=True),
    "cholesky_solve": lambda a: torch.cholesky_solve(B, LINALG.cholesky(positive(a))),
    "solve_triangular": lambda a: LINALG.solve_triangular(a, B, upper=True),
    "solve_triangular of ones": lambda a: LINALG.solve_triangular(a, B, upper=False, unitriangular=True),
    "solve_triangular from the right": lambda a: LINALG.solve_triangular(a, B.mT, upper=True, left=False),
    "lu": lambda a: LINALG.lu(a)[1] * LINALG.lu(a)[2].mT,
    "lu_factor": lambda a: LINALG.lu_factor(a)[0],
    "eigvalsh": lambda a: LINALG.eigvalsh(positive(a)),
    "eigh": lambda a: vectors(LINALG.eigh(a + a.mT)[1]),
    "svdvals": LINALG.svdvals,
    "svd": lambda a: vectors(LINALG.svd(a)[0]) + vectors(LINALG.svd(a)[2].mT),
    "qr": lambda a: LINALG.qr(a)[0] * LINALG.qr(a)[1],
    "matrix_exp": lambda a: LINALG.matrix_exp(a * 0.3),
    "matrix_power": lambda a: LINALG.matrix_power(a, -2),
    "nuclear norm": lambda a: LINALG.matrix_norm(a, "nuc"),
}
TALL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "svd of a tall matrix": lambda a: vectors(LINALG.svd(a, full_matrices=False)[0]),
    "svd of a wide matrix": lambda a: vectors(LINALG.svd(a.mT, full_matrices=False)[2].mT),
    "qr of a tall matrix": lambda a: LINALG.qr(a)[0] * LINALG.qr(a)[1].sum(),
}
FAST = ("solve of both", "det", "cholesky", "eigh")
SLOW = pytest.mark.slow
CASES = [pytest.param(f, matrices(N, N), id=name, marks=() if name in FAST else SLOW) for name, f in SQUARE.items()]
CASES += [pytest.param(f, matrices(N + 2, N), id=name, marks=SLOW) for name, f in TALL.items()]


@pytest.mark.parametrize(("f", "a"), CASES)
def test_derivatives_and_batches_are_those_of_torch(f: Callable[..., Any], a: torch.Tensor) -> None:
    step = matrices(*a.shape, seed=2)
    seed = matrices(1, a.numel(), seed=3)[0]

    def loss(a: torch.Tensor) -> torch.Tensor:
        found = f(a).reshape(-1)
        return (found * seed[: found.shape[0]]).sum()

    def of(t: Any) -> Any:
        rows = torch.stack([a, a * 1.1 + 0.1])
        return (
            t.vmap(f)(rows),
            t.vmap(t.grad(loss))(rows),
            t.jvp(f, (a,), (step,))[1],
            t.jvp(t.grad(loss), (a,), (step,))[1],
        )

    torch.testing.assert_close(of(weft.func), of(reference), rtol=1e-8, atol=1e-9)


def test_derivatives_of_the_determinant_of_a_singular_matrix() -> None:
    """They are those of its minors."""
    a = torch.tensor([[2, 1, 0], [4, 2, 1], [2, 1, 3]], dtype=torch.float64)
    minors = torch.stack([torch.stack([(-1) ** (i + j) * _minor(a, i, j) for j in range(3)]) for i in range(3)])
    torch.testing.assert_close(weft.grad(LINALG.det)(a), minors, rtol=1e-9, atol=1e-9)


def _minor(a: torch.Tensor, row: int, column: int) -> torch.Tensor:
    rows, columns = [n for n in range(3) if n != row], [n for n in range(3) if n != column]
    kept = a[rows][:, columns]
    return kept[0, 0] * kept[1, 1] - kept[0, 1] * kept[1, 0]


SINGULAR = (
    torch.tensor([[1, 2, 3], [4, 5, 6], [5, 7, 9]], dtype=torch.float64),
    torch.tensor([[1, 2, 3], [2, 4, 6], [3, 6, 9]], dtype=torch.float64) * 1e-20,
)


@pytest.mark.parametrize("a", SINGULAR)
def test_second_derivatives_of_the_determinant_of_a_singular_matrix(a: torch.Tensor) -> None:
    """They are those of its minors, at rank 2 and at rank 1."""

    def by_minors(a: torch.Tensor) -> torch.Tensor:
        return a[0, 0] * _minor(a, 0, 0) - a[0, 1] * _minor(a, 0, 1) + a[0, 2] * _minor(a, 0, 2)

    bound = 1e-13 * float(a.abs().max())
    torch.testing.assert_close(weft.hessian(LINALG.det)(a), reference.hessian(by_minors)(a), rtol=0, atol=bound)


def test_third_derivatives_of_the_determinant() -> None:
    """Of a matrix that is not singular; others are refused."""
    a, e, g, h = (matrices(3, 3, seed=seed) for seed in range(4))
    third = weft.func.jacfwd(weft.hessian(LINALG.det))
    found = torch.einsum("abcdef,ab,cd,ef->", third(a), e, g, h)
    det = LINALG.det
    mixed = det(e + g + h) - det(e + g) - det(e + h) - det(g + h) + det(e) + det(g) + det(h)
    torch.testing.assert_close(found, mixed, rtol=1e-9, atol=1e-9)
    with pytest.raises(weft.DataError, match="third derivative of the determinant"):
        third(SINGULAR[0])


def test_a_gradient_of_slogdet_needs_a_matrix_that_is_not_singular() -> None:
    gradient = weft.grad(lambda a: LINALG.slogdet(a)[1])
    with pytest.raises(weft.DataError, match="gradient of slogdet"):
        gradient(torch.zeros(2, 2, dtype=torch.float64))


CHECKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "solve": lambda a: LINALG.solve_ex(a, B[:3], check_errors=True)[0],
    "inv": lambda a: LINALG.inv_ex(a, check_errors=True)[0],
    "cholesky": lambda a: LINALG.cholesky_ex(a, check_errors=True)[0],
    "lu_factor": lambda a: LINALG.lu_factor_ex(a, check_errors=True)[0],
}


@pytest.mark.parametrize("name", CHECKED)
def test_matrices_are_checked_where_asked_for(name: str) -> None:
    with pytest.raises(weft.DataError, match=f"{name}_ex of a matrix"):
        weft.vmap(CHECKED[name])(torch.zeros(2, 3, 3, dtype=torch.float64))


def test_solve_ex_tells_of_each_matrix_whether_it_failed() -> None:
    a, b = matrices(2, 3, 3), matrices(5, 1, 3, 2)
    info = weft.vmap(lambda a: LINALG.solve_ex(a, b)[1], in_axes=None, axis_size=1)(a)
    assert info[0].shape == LINALG.solve_ex(a, b)[1].shape


def test_qr_of_which_only_r_is_asked_for() -> None:
    a = matrices(2, 3, 4)
    q, r = weft.vmap(lambda a: LINALG.qr(a, mode="r"))(a)
    assert q.numel() == 0
    torch.testing.assert_close(r, LINALG.qr(a, mode="r")[1])
    with pytest.raises(weft.UnsupportedError, match="mode='r'"):
        weft.grad(lambda a: LINALG.qr(a, mode="r")[1].sum())(a[0])


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_gradients_of_symmetric_matrices_are_symmetric(uplo: str) -> None:
    a, weights = positive(matrices(N, N)), matrices(N, N, seed=5)

    def f(a: torch.Tensor) -> torch.Tensor:
        return (LINALG.eigh(a, UPLO=uplo)[1] ** 2 * weights).sum()

    torch.testing.assert_close(weft.grad(f)(a), reference.grad(f)(a), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("f", [LINALG.cholesky, lambda a: vectors(LINALG.eigh(a)[1])])
def test_tangents_of_symmetric_matrices_are_those_of_the_symmetric_part(f: Callable[..., Any]) -> None:
    a, step = positive(matrices(N, N)), matrices(N, N, seed=6)
    found = weft.jvp(f, (a,), (step,))[1]
    expected = reference.jvp(f, (a,), ((step + step.mT) / 2,))[1]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_exchanges_of_rows_do_not_change() -> None:
    a = matrices(3, 3).flip(0)
    assert not weft.grad(lambda a: (LINALG.lu(a)[0] * B[:3]).sum())(a).any()
    f = lambda a: (LINALG.lu(a)[0] @ a).pow(2).sum()  # noqa: E731
    torch.testing.assert_close(weft.grad(f)(a), reference.grad(f)(a))


def test_batches_of_nothing_fail_no_check() -> None:
    assert weft.vmap(LINALG.inv)(torch.zeros(0, 3, 3, dtype=torch.float64)).shape == (0, 3, 3)
    weights = torch.ones(5, 2)
    assert weft.vmap(lambda i: weights[i])(torch.zeros(0, dtype=torch.int64)).shape == (0, 2)


def test_matrices_that_lapack_does_not_take_are_named() -> None:
    with pytest.raises(weft.DTypeError, match=r"linalg\.inv of a matrix of torch\.float16") as raised:
        weft.grad(lambda a: LINALG.inv(a).sum())(torch.eye(3, dtype=torch.float16))
    assert "test_matrices.py" in str(raised.value.location)
    with pytest.raises(weft.ShapeError, match=r"linalg\.inv of a matrix that is not square: \[2, 3\]"):
        weft.grad(lambda a: LINALG.inv(a).sum())(torch.ones(2, 3))


def test_matrices_inside_of_control_flow_fail_where_their_branch_is_taken() -> None:
    def f(going: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.cond(going, lambda a: LINALG.inv(a).sum(), lambda a: a.sum() * 2, (a,))

    gradient, batched = weft.grad(f, argnums=1), weft.vmap(f, in_axes=(0, None))
    a, singular = matrices(3, 3), torch.zeros(3, 3, dtype=torch.float64)
    yes, no = torch.tensor(True), torch.tensor(False)
    torch.testing.assert_close(gradient(yes, a), reference.grad(lambda a: LINALG.inv(a).sum())(a))
    torch.testing.assert_close(gradient(no, singular), torch.full_like(a, 2))
    both = torch.stack([yes, no])
    torch.testing.assert_close(batched(both, a), torch.stack([LINALG.inv(a).sum(), a.sum() * 2]))
    for call in (lambda: gradient(yes, singular), lambda: batched(both, singular)):
        with pytest.raises(weft.DataError, match=r"linalg\.inv of a matrix"):
            call()


@pytest.mark.parametrize("f", [lambda a: LINALG.solve(a, B).sum(), lambda a: LINALG.cholesky(a).sum()])
def test_matrices_that_cannot_be_solved_with_are_an_error_of_the_call(f: Callable[..., Any]) -> None:
    gradient = weft.grad(f)
    with pytest.raises(weft.DataError, match=r"linalg\.\w+ of a matrix"):
        gradient(torch.zeros(N, N, dtype=torch.float64))
    assert gradient(positive(matrices(N, N))).shape == (N, N)


def test_matrix_calls_beside_what_weft_computes_itself() -> None:
    """A convolution keeps its rules where a library solves."""
    kernel, image = matrices(1, 1, 3, 3), matrices(1, 1, N + 2, N + 2)

    def f(image: torch.Tensor) -> torch.Tensor:
        return LINALG.inv(torch.nn.functional.conv2d(image, kernel)[0, 0]).sum()

    torch.testing.assert_close(weft.hessian(f)(image), reference.hessian(f)(image), rtol=1e-7, atol=1e-8)
