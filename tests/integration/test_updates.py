"""Buffers that a compiled function changes in part: only that part is written, where it lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

AT = torch.tensor([3])


def index_copy(cache: Tensor, new: Tensor) -> None:
    cache.index_copy_(2, AT, new)


def indexed(cache: Tensor, new: Tensor) -> None:
    cache[:, :, AT] = new


def added(cache: Tensor, new: Tensor) -> None:
    cache.index_add_(2, AT, new)


def sliced(cache: Tensor, new: Tensor) -> None:
    cache[:, :, 5:6].copy_(new)


def selected(cache: Tensor, new: Tensor) -> None:
    cache[:, :, -1] = new[:, :, 0]


def doubled(cache: Tensor, new: Tensor) -> None:
    cache[:, :, 2:4].mul_(new)


def twice(cache: Tensor, new: Tensor) -> None:
    cache.index_copy_(2, AT, new)
    cache[:, :, 3:5] += new


def memory(how: str, dtype: torch.dtype) -> Tensor:
    match how:
        case "row-major":
            return torch.randn(2, 3, 8, 16, dtype=dtype)
        case "transposed":
            return torch.randn(2, 8, 3, 16, dtype=dtype).transpose(1, 2)
        case _:
            return torch.randn(2, 3, 8, 32, dtype=dtype)[..., 8:24]


@pytest.mark.parametrize(
    ("change", "dtype", "how"),
    [
        *((change, torch.bfloat16, "row-major") for change in (index_copy, indexed, added, selected, doubled, twice)),
        *((index_copy, torch.float32, how) for how in ("row-major", "transposed", "gaps")),
        *((sliced, torch.bfloat16, how) for how in ("row-major", "transposed", "gaps")),
    ],
)
def test_a_cache_that_attention_reads(change: Callable[[Tensor, Tensor], None], dtype: torch.dtype, how: str) -> None:
    def step(cache: Tensor, new: Tensor, query: Tensor) -> Tensor:
        change(cache, new)
        return F.scaled_dot_product_attention(query, cache, cache)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="weft", options={"cache": False})
    cache, own = memory(how, dtype), memory(how, dtype)
    own.copy_(cache)
    around = own if own._base is None else own._base
    before = around.clone()
    with torch.no_grad():
        for _ in range(3):
            new, query = torch.randn(2, 3, 1, 16, dtype=dtype), torch.randn(2, 3, 2, 16, dtype=dtype)
            step(cache, new, query)
            found = compiled(own, new, query)
            torch.testing.assert_close(own, cache)
            expected = F.scaled_dot_product_attention(query.double(), cache.double(), cache.double())
            torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)
    if how == "gaps":
        assert torch.equal(around[..., :8], before[..., :8]) and torch.equal(around[..., 24:], before[..., 24:])
