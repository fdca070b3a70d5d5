"""Functions of complex numbers at zeros, on axes and branch cuts, and far out: values and gradients are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft

_Function = Callable[[Tensor], Tensor]
_FUNCTIONS: list[_Function] = [
    *(torch.sqrt, torch.rsqrt, torch.asin, torch.acos, torch.asinh, torch.acosh, torch.log1p),
    *(lambda z: z**0.5, lambda z: z**2.5, lambda z: z ** (2 + 1j), lambda z: z ** torch.tensor(-1.0)),
]
_SMOOTH = [
    -4 + 0j,
    2j,
    -2j,
    1e-3 + 2e-3j,
    -1e-3,
    -20 + 0.5j,
    -0.999,
    -2 - 1j,
    complex(3, -0.0),
    -1e3 + 0.5j,
    -1e4,
    1e4 - 0.3j,
]
_ENDS = [0, complex(0, -0.0), 1, -1, 1j, -1j, 3, -3, complex(-3, -0.0), 3j, complex(-0.0, 3), -1e20, 1e20, 1e20j]


@pytest.mark.parametrize("dtype", [torch.complex64, pytest.param(torch.complex128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_values_and_gradients(function: _Function, dtype: torch.dtype) -> None:
    def loss(z: Tensor) -> tuple[Tensor, Tensor]:
        return ((values := function(z)) * (1 - 2j)).real.sum(), values

    def assert_close(found: Tensor, expected: Tensor) -> None:
        # Of what is infinite, the other part is any number.
        found, expected = (torch.where(torch.isfinite(each.abs()), each, math.nan) for each in (found, expected))
        torch.testing.assert_close(found, expected, rtol=64 * torch.finfo(dtype).eps, atol=0, equal_nan=True)

    z, smooth = torch.tensor(_SMOOTH + _ENDS, dtype=dtype), torch.tensor(_SMOOTH, dtype=dtype)
    slopes, values = weft.grad(loss, has_aux=True)(z)
    assert_close(values, function(z))
    expected, _ = torch.func.grad(loss, has_aux=True)(smooth.to(torch.complex128))
    assert_close(slopes[: len(_SMOOTH)], expected.to(dtype))


def test_tangents_of_roots_on_both_axes() -> None:
    z = torch.tensor([-4 + 0j, complex(-4, -0.0), 2j, -2j])
    torch.testing.assert_close(weft.jvp(torch.sqrt, (z,), (z + 1j,)), torch.func.jvp(torch.sqrt, (z,), (z + 1j,)))


def test_derivatives_are_of_the_side_of_the_cut_that_the_value_is_on() -> None:
    cut = torch.tensor([3 + 0j, complex(3, -0.0), complex(-3, 0.0), complex(-3, -0.0)], dtype=torch.complex128)
    beside = cut + 1e-13j * torch.tensor([1, -1, 1, -1])
    for function in (torch.asin, torch.acos):

        def loss(z: Tensor, function: _Function = function) -> Tensor:
            return (function(z) * (1 - 2j)).real.sum()

        torch.testing.assert_close(weft.grad(loss)(cut), torch.func.grad(loss)(beside))


def test_sigmoid_far_from_zero() -> None:
    def loss(z: Tensor) -> tuple[Tensor, Tensor]:
        return (found := torch.sigmoid(z)).real.sum(), found

    z = torch.tensor([-1e4, -1e3 + 0.5j, 1e4, 0.5 - 1j, -0.5 + 1j, 0])
    slope, value = weft.grad(loss, has_aux=True)(z)
    expected, of_torch = torch.func.grad(loss, has_aux=True)(z[2:])
    torch.testing.assert_close(value, torch.cat([torch.zeros(2, dtype=z.dtype), of_torch]))
    torch.testing.assert_close(slope, torch.cat([torch.zeros(2, dtype=z.dtype), expected]))


@pytest.mark.parametrize(
    "function",
    [lambda z: z**2.5, lambda z: z**20, lambda z: z ** torch.tensor(2.5), lambda z: z.std(0) + 0j],
)
def test_at_zero_the_slope_is_zero(function: _Function) -> None:
    zeros = torch.zeros(3, dtype=torch.complex64)
    found = weft.grad(lambda z: (function(z) * (1 - 2j)).real.sum())(zeros)
    torch.testing.assert_close(found, zeros)


def test_an_infinite_exponent() -> None:
    z = torch.tensor([0.5 + 0.1j, 1, 2 + 1j, 0, -1], dtype=torch.complex128)
    for exponent in (math.inf, -math.inf):
        found = weft.vmap(lambda z, exponent=exponent: z**exponent)(z)
        torch.testing.assert_close(found, z**exponent, equal_nan=True)


def test_products_in_another_type() -> None:
    def products(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.complex128
        return torch.prod(z, 0, dtype=wide), torch.prod(z, dtype=wide), torch.cumprod(z, 1, dtype=wide)

    z = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(4))
    found, expected = weft.vjp(products, z), torch.func.vjp(products, z)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1](expected[0]), expected[1](expected[0]))
