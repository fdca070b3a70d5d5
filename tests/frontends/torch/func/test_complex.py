"""Complex arguments and results of transformed functions: gradients and tangents by torch's conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import weft

Z = torch.randn(3, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
W = torch.randn(4, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(2))
X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
_BY_NAME = (
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
    *("log", "log2", "log10", "log1p", "exp", "expm1", "exp2", "sqrt", "rsqrt", "sigmoid", "square", "reciprocal"),
)


def _named(z: Tensor) -> Tensor:
    return torch.stack([(getattr(torch, name)(z) * (1 + 2j)).real.sum() for name in _BY_NAME]).sum()


def _powers(z: Tensor) -> Tensor:
    return ((z**3 + z**-2 + z**2.5 + z ** (1 + 2j) + z**z) * (1 - 3j)).real.sum() + (2.5**z).imag.sum()


def _reductions(z: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(z, 3) + torch.linalg.vector_norm(z, 1, dim=0).prod() + z.std()
    return norms + z.prod().abs() + z.prod(1).real.sum() + z.cumprod(0).imag.sum() + z.mean().abs()


def _products(z: Tensor) -> Tensor:
    vectors = torch.vdot(z[0], z[1]).real + torch.dot(z[0], z[2]).imag + (z @ W[:, 0]).abs().sum()
    return vectors + (z @ W).abs().sum() + torch.einsum("ij,kj->ik", z, z.conj()).imag.pow(2).sum()


def _parts(z: Tensor) -> Tensor:
    turned = torch.polar(z.abs(), 2 * z.angle()) * torch.sgn(z) + torch.complex(z.real**2, z.imag)
    return (turned * X).real.sum() + torch.view_as_real(z.conj() * 2j).pow(3).sum()


def _few(z: Tensor) -> Tensor:
    return ((torch.tanh(z) * torch.sqrt(z) + torch.log1p(z)) * (z**3 + z**1.5)).imag.sum()


@pytest.mark.parametrize("function", [_few, _products, _parts])
def test_gradients_are_those_of_torch(function: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(weft.grad(function)(Z), torch.func.grad(function)(Z))


@pytest.mark.slow
@pytest.mark.parametrize("function", [_named, _powers, _reductions, _products, _parts])
def test_second_derivatives_are_those_of_torch(function: Callable[[Tensor], Tensor]) -> None:
    along = (Z,), (Z.flip(0),)
    expected = torch.func.jvp(torch.func.grad(function), *along)
    torch.testing.assert_close(weft.jvp(weft.grad(function), *along), expected)


def test_results_that_are_complex() -> None:
    def function(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(z) * z.conj() * x, (z * x).abs()

    seeds = Z.flip(1), X.flip(1)
    for make, one in ((torch.func, torch.func.vjp), (weft.func, weft.vjp)):
        value, pull = one(function, Z, X)
        found = value, pull(seeds), make.jvp(function, (Z, X), seeds), make.linearize(function, Z, X)[1](*seeds)
        if make is torch.func:
            expected = found
        else:
            torch.testing.assert_close(found, expected)
            rows: Any = weft.vmap(pull)((torch.stack([seeds[0]] * 2), torch.stack([seeds[1]] * 2)))
            torch.testing.assert_close(tuple(each[1] for each in rows), expected[1])


def test_gradients_of_real_and_complex_arguments_and_values_beside() -> None:
    def function(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (z * x).abs().sum(), z * 2

    expected = torch.func.grad(function, argnums=(0, 1), has_aux=True)(Z, X)
    torch.testing.assert_close(weft.grad(function, argnums=(0, 1), has_aux=True)(Z, X), expected)


def test_gradients_of_gradients_of_products_with_a_complex_number() -> None:
    def slope(make: Any) -> Any:
        return make.grad(lambda x: torch.exp(1j * x).imag.sum())

    found = weft.grad(lambda x: slope(weft.func)(x).pow(2).sum())(X)
    torch.testing.assert_close(found, torch.func.grad(lambda x: slope(torch.func)(x).pow(2).sum())(X))


@pytest.mark.parametrize("axis", [1, -1])
def test_batches_along_any_axis(axis: int) -> None:
    def function(z: Tensor) -> Tensor:
        return torch.outer(z, z.conj())

    expected = torch.func.vmap(function, in_dims=1, out_dims=axis)(Z)
    torch.testing.assert_close(weft.vmap(function, in_axes=1, out_axes=axis)(Z), expected)
    torch.testing.assert_close(weft.vmap(function, in_axes=1, out_axes=axis, chunk_size=3)(Z), expected)


def test_an_axis_behind_the_last_is_refused() -> None:
    with pytest.raises(weft.ShapeError, match="out_axes has 2"):
        weft.vmap(lambda z: z * 2, out_axes=2)(Z)


def test_views_that_are_conjugated_or_negated() -> None:
    for given in (Z.conj(), Z.mH, Z.conj().imag, torch._neg_view(X)):

        def function(z: Tensor) -> Tensor:
            return torch.view_as_real(z * z * 1j).sum()

        torch.testing.assert_close(weft.grad(function)(given), torch.func.grad(function)(given))


def _without_gradients(z: Tensor) -> Tensor:
    with torch.no_grad():
        return z.conj() * 2j


@pytest.mark.parametrize(
    "fixed",
    [torch.Tensor.detach, _without_gradients, lambda z: z.conj().detach(), lambda z: z.conj().imag.detach()],
)
def test_no_gradient_flows_through_what_is_detached(fixed: Callable[[Tensor], Tensor]) -> None:
    def loss(z: Tensor) -> Tensor:
        return (z * fixed(z) * (1 - 2j)).real.sum()

    torch.testing.assert_close(weft.grad(loss)(Z), torch.func.grad(loss)(Z))


def test_where_a_magnitude_has_no_slope_the_gradient_is_zero() -> None:
    z = torch.tensor([0, 1, 1j, -1], dtype=torch.complex128)
    for function in (torch.abs, torch.angle, torch.sgn):

        def loss(z: Tensor, function: Callable[[Tensor], Tensor] = function) -> Tensor:
            return (function(z) * (1 + 2j)).real.sum()

        torch.testing.assert_close(weft.grad(loss)(z), torch.func.grad(loss)(z))


def _scanned(z: Tensor) -> Tensor:
    def turn(carried: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = carried * x + x.conj()
        return new, new * 2

    last, every = scan(turn, W.mT.reshape(-1)[:4], z)
    return last.abs().sum() + every.imag.pow(2).sum()


def _by_hand(z: Tensor) -> Tensor:
    carried, every = W.mT.reshape(-1)[:4], []
    for x in z:
        carried = carried * x + x.conj()
        every.append(carried * 2)
    return carried.abs().sum() + torch.stack(every).imag.pow(2).sum()


def _while(z: Tensor) -> Tensor:
    _, z = while_loop(lambda n, _: n < 3, lambda n, z: (n + 1, z * z * 0.5), (torch.tensor(0), z))
    return torch.cond(z.real.sum() > 0, lambda z: z * 2, lambda z: z * z, (z,)).abs().sum()


def _turns(z: Tensor) -> Tensor:
    for _ in range(3):
        z = z * z * 0.5
    return (z * 2 if z.real.sum() > 0 else z * z).abs().sum()


@pytest.mark.parametrize(("function", "plain"), [(_scanned, _by_hand), (_while, _turns)])
def test_in_control_flow(function: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor]) -> None:
    batch = torch.stack([Z, Z * 0.5, -Z])
    expected = torch.stack([torch.func.grad(plain)(z) for z in batch])
    torch.testing.assert_close(weft.vmap(weft.grad(function))(batch), expected)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(weft.DTypeError, match="returns complex numbers"):
        weft.grad(lambda z: z.sum())(Z)
    for jacobian in (weft.func.jacrev, weft.func.jacfwd):
        with pytest.raises(weft.DTypeError, match="Jacobian of complex numbers"):
            jacobian(lambda x: x * 1j)(X)
        with pytest.raises(weft.DTypeError, match="Jacobian of complex numbers"):
            jacobian(torch.abs)(Z)
