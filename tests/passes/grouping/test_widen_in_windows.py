"""Means of windows over narrow floats: one kernel, which widens what it reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "fixed": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 5),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
def test_no_wider_copy_is_made(pool: Callable[[Tensor], Tensor], dtype: torch.dtype, channels_last: bool) -> None:
    x = torch.randn(2, 8, 19, 23).to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    explanation = weft.explain(pool, x)
    assert len(explanation.figures()["graphs"][0]["kernels"]) == 1
    found, exact = torch.compile(pool, backend="weft")(x), pool(x.double())
    assert (found.double() - exact).abs().max() <= 2 * (pool(x).double() - exact).abs().max()


def test_what_others_read_too_is_a_value() -> None:
    def pooled_and_kept(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.float()
        return F.avg_pool2d(wide, 3, 2, 1), wide

    x = torch.randn(2, 8, 19, 23).bfloat16()
    pooled, wide = torch.compile(pooled_and_kept, backend="weft")(x)
    assert torch.equal(wide, x.float())
    torch.testing.assert_close(pooled, F.avg_pool2d(x.float(), 3, 2, 1))
