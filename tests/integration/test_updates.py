"""Buffers that a compiled function changes in part: only that part is written, where it lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.runtime.record import CompilationRecord

from .conftest import Check

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


def layers(cache: Tensor, new: Tensor) -> Tensor:
    results: list[Tensor] = []
    for number in range(3):
        cache[number].index_copy_(1, AT, new + number)
        results.append(F.scaled_dot_product_attention(new, cache[number], cache[number]))
    return torch.stack(results)


def halves(cache: Tensor, new: Tensor) -> Tensor:
    cache[0, :, 2:4] = new
    cache[1][:, AT] = new
    return F.scaled_dot_product_attention(new, cache[0], cache[1])


def before_and_after(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    before = cache[1].sin()
    cache[1].index_copy_(1, AT, new)
    return F.scaled_dot_product_attention(new, before, cache[1]), cache[1].cos() + before


def overlapping(cache: Tensor, new: Tensor) -> Tensor:
    cache[0:2].index_copy_(2, AT, new.expand(2, 2, 1, 16))
    first = F.scaled_dot_product_attention(new, cache[1], cache[0])
    cache[1].index_copy_(1, AT + 1, new * 2)
    return first + F.scaled_dot_product_attention(new, cache[1], cache[0])


def moved_along(cache: Tensor, new: Tensor) -> Tensor:
    cache[0].copy_(cache[1])
    cache[1].index_copy_(1, AT, new)
    return F.scaled_dot_product_attention(new, cache[0], cache[1])


def over_again(cache: Tensor, new: Tensor) -> Tensor:
    cache[2][:, AT] = new
    first = cache[2].cumsum(1)
    cache[2][:, AT] = first[:, AT]
    return first + cache[2]


def several_tokens(cache: Tensor, new: Tensor) -> Tensor:
    for number in range(3):
        cache[1].index_copy_(1, AT + number, new)
        new = new + F.scaled_dot_product_attention(new, cache[1], cache[1])
    cache[:, :, 7:].mul_(2)
    return new


def viewed_by_the_framework(cache: Tensor, new: Tensor) -> Tensor:
    halves = torch.special.airy_ai(cache[0]), cache.as_strided((3, 2, 8, 16), cache.stride())
    cache[0, :, 1:2] = new
    return halves[0] + halves[1][0]


def swapped(cache: Tensor, new: Tensor) -> Tensor:
    first = cache[0].clone()
    cache[0] = cache[1]
    cache[1] = first
    return cache * 2 + new


STEPS = (
    *(layers, halves, before_and_after, overlapping, moved_along, over_again),
    *(several_tokens, viewed_by_the_framework, swapped),
)


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@torch.no_grad()
def test_the_caches_of_layers_in_one_tensor(check: Check, step: Callable[..., Tensor], dynamic: bool) -> None:
    check(step, torch.randn(3, 2, 8, 16), torch.randn(2, 1, 16), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@torch.no_grad()
def test_a_layers_cache_is_written_where_it_lies(records: list[CompilationRecord], dynamic: bool) -> None:
    torch.compile(layers, backend="weft", dynamic=dynamic)(torch.randn(3, 2, 8, 16), torch.randn(2, 1, 16))
    (record,) = records
    assert not [kernel.name for kernel in record.kernels if "copy" in kernel.name or "update_slice" in kernel.name]
