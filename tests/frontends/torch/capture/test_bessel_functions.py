"""Bessel, Airy, zeta and incomplete gamma functions, orthogonal polynomials: they give what kernels of torch give."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.frontends.torch.capture import bessel_functions, gamma_functions
from weft.frontends.torch.capture.airy_function import airy_ai
from weft.frontends.torch.capture.orthogonal_polynomials import POLYNOMIALS

_EDGES = torch.tensor([0.0, -0.0, 1e-300, 5.0, -5.0, 2.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
_REALS = torch.cat([torch.linspace(-30, 120, 1501, dtype=torch.float64), _EDGES])
_OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "airy_ai": airy_ai,
    **{
        name: getattr(bessel_functions, name)
        for name in (
            *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1"),
            *("scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0"),
        )
    },
}


@pytest.mark.parametrize("name", _OF_ONE)
def test_values_are_those_of_kernels(name: str) -> None:
    expected = getattr(torch.special, name)(_REALS)
    torch.testing.assert_close(_OF_ONE[name](_REALS), expected, rtol=1e-12, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_of_all_degrees_are_those_of_kernels(name: str) -> None:
    x = torch.cat([torch.randn(60, dtype=torch.float64) * 2, torch.tensor([0.0, 1, -1, 0.5, 0.25, -0.9999])])
    function = getattr(torch.special, name)
    n = torch.randint(-2, 14, x.shape).double()
    torch.testing.assert_close(POLYNOMIALS[name](x, n), function(x, n), rtol=1e-11, atol=1e-13, equal_nan=True)
    for degree in (-1, 0, 1, 2, 7, 20):
        torch.testing.assert_close(POLYNOMIALS[name](x, degree), function(x, degree), rtol=1e-11, atol=1e-13)


def test_zeta_is_that_of_kernels_at_poles_and_below_them() -> None:
    x = torch.cat([1.001 + 20 * torch.rand(400, dtype=torch.float64), torch.arange(-3.0, 12, dtype=torch.float64)])
    q = torch.cat([50 * torch.rand(400, dtype=torch.float64), 20 * torch.randn(15, dtype=torch.float64)])
    q[::9] = torch.floor(q[::9])
    found = gamma_functions.zeta(x, q)
    torch.testing.assert_close(found, torch.special.zeta(x, q), rtol=1e-12, atol=0, equal_nan=True)


def test_zeta_of_numbers_without_end_is_its_first_term() -> None:
    x = torch.tensor([40.0, 1e3, 1e15, 1e300, math.inf], dtype=torch.float64)
    for q in (1.0, 0.5):
        place = torch.full_like(x, q)
        torch.testing.assert_close(gamma_functions.zeta(x, place), torch.special.zeta(x, place))


def test_what_is_empty_and_halves_are_taken() -> None:
    def both(x: Tensor) -> Tensor:
        return torch.special.zeta(x, 2.0) + torch.special.hermite_polynomial_h(x, 3).to(x.dtype)

    compiled = torch.compile(both, backend="weft", dynamic=False)
    for x in (torch.empty(0, 3), torch.rand(4).double() + 2):
        torch.testing.assert_close(compiled(x), both(x))
    with pytest.raises(NotImplementedError, match="float16"):
        POLYNOMIALS["hermite_polynomial_h"](torch.rand(3).half(), 3)


def test_numbers_without_dimensions_are_taken() -> None:
    a, x = torch.tensor(2.5, dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)
    torch.testing.assert_close(gamma_functions.igamma(a, x), torch.igamma(a, x))
    torch.testing.assert_close(gamma_functions.igammac(x, a), torch.igammac(x, a))


def test_incomplete_gamma_functions_are_right_from_end_to_end() -> None:
    a = 10 ** (torch.rand(1500, dtype=torch.float64) * 9 - 3)
    x = torch.cat([a[:500] * 10 ** torch.randn(500, dtype=torch.float64), a[500:] + torch.randn(1000) * a[500:].sqrt()])
    x = x.abs()
    p, q = gamma_functions.igamma(a, x), gamma_functions.igammac(a, x)
    torch.testing.assert_close(p + q, torch.ones_like(p), rtol=1e-14, atol=0)
    # Torch's own are right to eight digits where a is large.
    torch.testing.assert_close(p, torch.igamma(a, x), rtol=1e-7, atol=1e-250)
    torch.testing.assert_close(q, torch.igammac(a, x), rtol=1e-7, atol=1e-250)
    a = torch.tensor([0.0, 0, 1, 1, 1, math.inf, 2, math.inf, -1])
    x = torch.tensor([0.0, 1, math.inf, math.nan, -1, 2, 0, math.inf, 1])
    torch.testing.assert_close(gamma_functions.igamma(a, x), torch.igamma(a, x), equal_nan=True)
    torch.testing.assert_close(gamma_functions.igammac(a, x), torch.igammac(a, x), equal_nan=True)


def test_a_graph_of_them_calls_nothing_of_torch() -> None:
    def all_of_them(x: Tensor, n: Tensor) -> Tensor:
        bessel = torch.special.bessel_j1(x) + torch.special.scaled_modified_bessel_k0(x.abs())
        bessel = bessel + torch.special.airy_ai(x)
        special = torch.special.legendre_polynomial_p(x, n) + torch.special.chebyshev_polynomial_u(x, 5)
        return bessel + special + torch.special.zeta(x.abs() + 2, n + 3) + torch.igamma(n + 2.0, x.abs())

    compiled = torch.compile(all_of_them, backend="weft", options={"fallback": "error"})
    x, n = torch.randn(7, 5, dtype=torch.float64), torch.randint(-2, 9, (5,))
    torch.testing.assert_close(compiled(x, n), all_of_them(x, n))
    torch.testing.assert_close(compiled(x.float(), n), all_of_them(x.float(), n), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["legendre_polynomial_p", "hermite_polynomial_h"])
def test_a_batch_is_one_call_and_not_a_loop_over_it(name: str) -> None:
    function = getattr(torch.special, name)
    compiled = torch.compile(lambda x, n: function(x, n), backend="weft", options={"strict": True})
    x, n = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 6, (2, 3)).double()
    of_rows = torch.func.vmap(compiled, (0, None))(x, n[0])
    torch.testing.assert_close(of_rows, torch.stack([function(row, n[0]) for row in x]))
    of_degrees = torch.func.vmap(compiled, (None, 0))(x[0], n)
    torch.testing.assert_close(of_degrees, torch.stack([function(x[0], degrees) for degrees in n]))
    of_columns = torch.func.vmap(compiled, (1, 1), 1)(x[:2], n)
    torch.testing.assert_close(of_columns, function(x[:2], n))
