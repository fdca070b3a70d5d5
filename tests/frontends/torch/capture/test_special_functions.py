"""Special functions in elementwise ops: what torch's kernels give, and without a call of them in a graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.frontends.torch.capture import special_functions

_EDGES = torch.tensor([0.0, -0.0, 1e-300, math.inf, -math.inf, math.nan, 1e10], dtype=torch.float64)
REALS = torch.cat([torch.linspace(-24, 24, 2001, dtype=torch.float64), _EDGES])
SHARES = torch.cat([torch.logspace(-300, -1, 400, dtype=torch.float64), torch.linspace(0, 1, 500, dtype=torch.float64)])

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]] = {
    "i0": (special_functions.i0, torch.special.i0, REALS),
    "i0e": (special_functions.i0e, torch.special.i0e, REALS),
    "i1": (special_functions.i1, torch.special.i1, REALS),
    "i1e": (special_functions.i1e, torch.special.i1e, REALS),
    "erfcx": (special_functions.erfcx, torch.special.erfcx, REALS),
    "ndtri": (special_functions.ndtri, torch.special.ndtri, SHARES),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_kernels(name: str) -> None:
    mine, torchs, points = FUNCTIONS[name]
    torch.testing.assert_close(mine(points), torchs(points), rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", [1, 2, 3, 7])
def test_polygamma_of_orders_is_reflected_below_a_half(order: int) -> None:
    points = torch.linspace(-5.45, 30, 1003, dtype=torch.float64)
    # Torch's own of order 1 is right to nine digits only.
    expected = (-1) ** (order + 1) * math.factorial(order) * torch.special.zeta(order + 1.0, points)
    found = special_functions.polygamma(order, points)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_a_graph_of_them_calls_nothing_of_torch() -> None:
    def all_of_them(x: Tensor) -> Tensor:
        inside = torch.sigmoid(x)
        bessel = torch.special.i0(x) + torch.special.i1e(x)
        return bessel + torch.special.ndtri(inside) + torch.special.erfcx(x) + torch.polygamma(3, inside + 1)

    compiled = torch.compile(all_of_them, backend="weft", options={"fallback": "error"})
    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(compiled(x), all_of_them(x))
    mine, eager = (torch.autograd.grad(each(x).sum(), x)[0] for each in (compiled, all_of_them))
    torch.testing.assert_close(mine, eager)


def test_mantissas_and_powers_of_all_kinds_of_numbers() -> None:
    compiled = torch.compile(torch.frexp, backend="weft", options={"fallback": "error"})
    points = torch.tensor([0.0, -0.0, 1, -3.5, 1e-310, 5e-324, 1e308, math.inf, -math.inf, math.nan])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = points.to(dtype)
        found, expected = compiled(x), torch.frexp(x)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0, equal_nan=True)
        finite = torch.isfinite(x)  # of others the power is not defined
        assert torch.equal(found[1][finite], expected[1][finite])


@pytest.mark.parametrize("name", ["igamma", "igammac", "special.zeta"])
def test_what_one_argument_settles_is_no_nan_for_the_other(name: str) -> None:
    function: Callable[[Tensor, Tensor], Tensor] = getattr(torch, name.removeprefix("special."), torch.special.zeta)
    ends = torch.tensor([math.nan, 0.0, 1.0, 3.0, -1.0, -2.5, math.inf, -math.inf], dtype=torch.float64)
    a, x = torch.full_like(ends, math.nan), ends
    for first, second in ((a, x), (x, a)):
        compiled = torch.compile(lambda a, x: function(a, x), backend="weft", options={"fallback": "error"})
        torch.testing.assert_close(compiled(first, second), function(first, second), equal_nan=True)
