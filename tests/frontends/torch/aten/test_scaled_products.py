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
@pytest.mark.parametrize("batch", [(), (3,)], ids=["addmm", "baddbmm"])
def test_products_are_rounded_once(batch: tuple[int, ...], alpha: float, beta: float, dtype: torch.dtype):
    call: Callable[..., Tensor] = torch.baddbmm if batch else torch.addmm

    def scaled(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return call(bias, x, y, beta=beta, alpha=alpha)

    sizes = ((41, 37), (41, 53), (53, 37))
    given = [torch.randn(*batch, *size).to(dtype) for size in sizes]
    wide = scaled(*(each.double() for each in given))
    found = torch.compile(scaled, backend="weft")(*given)
    assert found.dtype == dtype

    def error(x: Tensor) -> float:
        return float((x.double() - wide).pow(2).mean().sqrt())

    assert error(found) <= _ROUNDED_ONCE * error(wide.to(dtype))
