"""Products of narrow floats that are scaled, or added to what is, are rounded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

_ROUNDED_ONCE = 1.1
"""An error of two roundings of the same size is 1.4 of one."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(2.0315, -4.775), (0.3, 1), (1, 0.7), (1.7, 0)], ids=["both", "alpha", "beta", "no bias"]
)
@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (torch.addmm, ((41, 37), (41, 53), (53, 37))),
        (torch.baddbmm, ((3, 41, 37), (3, 41, 53), (3, 53, 37))),
        (torch.addmv, ((71,), (71, 53), (53,))),
        (torch.addbmm, ((41, 37), (5, 41, 53), (5, 53, 37))),
        (torch.addbmm, ((41, 61), (5, 41, 53), (5, 53, 61))),
        (torch.addr, ((41, 37), (41,), (37,))),
    ],
    ids=["addmm", "baddbmm", "addmv", "addbmm", "addbmm of one product", "addr"],
)
def test_products_are_rounded_once(
    call: Callable[..., Tensor], sizes: tuple[tuple[int, ...], ...], alpha: float, beta: float, dtype: torch.dtype
):
    def scaled(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return call(bias, x, y, beta=beta, alpha=alpha)

    given = [torch.randn(size).to(dtype) for size in sizes]
    wide = scaled(*(each.double() for each in given))
    torch.compiler.reset()  # past the limit of recompilations, eager would run
    found = torch.compile(scaled, backend="weft")(*given)
    assert found.dtype == dtype

    def error(x: Tensor) -> float:
        return float((x.double() - wide).pow(2).mean().sqrt())

    assert error(found) <= _ROUNDED_ONCE * error(wide.to(dtype))
