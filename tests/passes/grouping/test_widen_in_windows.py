"""Windows over narrow floats: a kernel widens what it reads, and leaves it to sums to widen what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.frontends.torch.aten.pooling import Windows
from weft.frontends.torch.remat.pool_offsets import Places
from weft.ir.expr import product
from weft.ir.types import f32
from weft.lower.machine import gpu_machine
from weft.testing.interpreted import GpuInterpreter

operators: Any = torch.ops
GEOMETRY: list[Any] = [[3, 3], [2, 2], [1, 1], [1, 1], False]

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


def test_what_sums_read_is_widened_by_them() -> None:
    """The gradient of max pooling, of which a batch norm's takes sums, is written as narrow as it is."""

    def sums(gradient: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = operators.weft.max_pool_backward(gradient, offsets, [4, 8, 16, 18], True, *GEOMETRY).float()
        return wide.sum((0, 2, 3)), (wide * x.float()).sum((0, 2, 3))

    x = torch.randn(4, 8, 16, 18).bfloat16().contiguous(memory_format=torch.channels_last)
    pooled, places = operators.aten.max_pool2d_with_indices(x, *GEOMETRY)
    where = Places((16, 18), Windows((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)))
    whole = torch.randint(-8, 8, pooled.shape).bfloat16().contiguous(memory_format=torch.channels_last)
    given = whole, where.offsets(places), x
    torch.compiler.reset()
    backend = GpuInterpreter(gpu_machine())
    found = torch.compile(sums, backend=backend, dynamic=False)(*given)
    for own, wanted in zip(found, sums(*given), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-3)
    plan = backend.plans[-1].plan
    (between,) = (b for b in plan.buffers if b.role == "temporary")
    assert between.layout.strides == x.stride()
    wide = [b for b in plan.buffers if b.tensor.dtype == f32 and product(b.tensor.shape) == x.numel()]
    assert not wide
