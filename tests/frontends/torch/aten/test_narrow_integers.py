"""Floats that integers of 8 or 16 bits do not hold wrap around, as eager has them."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_floats_wrap_around(source: torch.dtype, dtype: torch.dtype) -> None:
    """Within 31 bits, also when rounded to bf16: beyond them processors differ, but for bytes without a sign."""
    x = torch.cat([torch.linspace(-700, 700, 1409), (torch.rand(512) - 0.5) * 2**32 * 0.99]).to(source)
    if dtype == torch.uint8:
        x = torch.cat([x, (torch.rand(512, dtype=torch.float64) - 0.5) * 2**63]).to(source)
    x = x[x.isfinite()]
    compiled = torch.compile(lambda x: x.to(dtype), backend="weft", options={"cache": False})
    assert torch.equal(compiled(x), x.to(dtype))
