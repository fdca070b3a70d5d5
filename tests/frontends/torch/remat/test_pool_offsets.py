"""Max pooling keeps a byte for each result, and neither places as i64 nor what it pooled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.frontends.torch.aten.pooling import Windows
from weft.frontends.torch.remat.pool_offsets import Places

GEOMETRIES: dict[str, dict[str, Any]] = {
    "as in ResNet": {"kernel_size": 3, "stride": 2, "padding": 1},
    "apart": {"kernel_size": 2},
    "odd": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "ceil_mode": True},
    "dilated": {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
}


def trained(pool: Any, x: Tensor, weight: Tensor) -> tuple[dict[tuple[Any, ...], int], tuple[Tensor, ...]]:
    """How often a compiled function keeps tensors of a type and shape for its backward, and the gradients."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return pool((x * weight).sin()).square().sum()

    torch._dynamo.reset()
    counts: dict[tuple[Any, ...], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = (tensor.dtype, *tensor.shape)
        counts[key] = counts.get(key, 0) + 1
        return tensor

    given = [each.detach().clone().requires_grad_() for each in (x, weight)]
    compiled = torch.compile(function, backend="weft", options={"cache": False, "fallback": "quiet"})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = compiled(*given)
    return counts, torch.autograd.grad(loss, given)


def exact(pool: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    given = [each.detach().double().requires_grad_() for each in (x, weight)]
    return torch.autograd.grad(pool((given[0] * given[1]).sin()).square().sum(), given)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_gradients_come_from_bytes(geometry: dict[str, Any], channels_last: bool) -> None:
    x, weight = torch.randn(2, 3, 13, 11), torch.randn(3, 1, 1)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)

    def pool(x: Tensor) -> Tensor:
        return F.max_pool2d(x, **geometry)

    counts, found = trained(pool, x, weight)
    shape = pool(x).shape
    assert counts[torch.uint8, *shape] == 1
    assert not any(key[0] is torch.int64 and key[1:] == tuple(shape) for key in counts)
    for one, wanted in zip(found, exact(pool, x, weight), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4)


def test_volumes() -> None:
    x, weight = torch.randn(2, 3, 7, 6, 5), torch.randn(3, 1, 1, 1)

    def pool(x: Tensor) -> Tensor:
        return F.max_pool3d(x, (3, 2, 2), stride=2, padding=1)

    counts, found = trained(pool, x, weight)
    assert counts[torch.uint8, *pool(x).shape] == 1
    for one, wanted in zip(found, exact(pool, x, weight), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4)


def test_large_windows_keep_places() -> None:
    x, weight = torch.randn(1, 2, 40, 40), torch.randn(2, 1, 1)

    def pool(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 17, stride=4)

    counts, found = trained(pool, x, weight)
    assert not any(key[0] is torch.uint8 for key in counts)
    for one, wanted in zip(found, exact(pool, x, weight), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4)


def test_places_that_are_a_result_stay() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(x, 2, return_indices=True)

    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    torch._dynamo.reset()
    pooled, places = torch.compile(function, backend="weft", options={"cache": False})(x)
    wanted, known = function(x)
    assert torch.equal(places, known)
    (found,) = torch.autograd.grad(pooled.square().sum(), x)
    torch.testing.assert_close(found, *torch.autograd.grad(wanted.square().sum(), x))


def test_offsets_and_places_are_inverse() -> None:
    x = torch.randn(2, 3, 19, 23)
    where = Places((19, 23), Windows((3, 5), (2, 3), (1, 2), (3, 1), (1, 2)))
    _, places = F.max_pool2d(x, (3, 5), (2, 3), (1, 2), (3, 1), return_indices=True)
    offsets = where.offsets(places)
    assert offsets.dtype == torch.uint8 and int(offsets.max()) < 15
    assert torch.equal(where.places(offsets), places)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_torch_itself_needs_no_more_than_sizes(order: torch.memory_format) -> None:
    """Where no kernel of Weft's does it, torch's backward does, with places and sizes."""
    operators: Any = torch.ops
    x = torch.randn(2, 3, 13, 11).contiguous(memory_format=order)
    geometry = [[3, 3], [2, 2], [1, 1], [1, 1], False]
    pooled, places = operators.aten.max_pool2d_with_indices(x, *geometry)
    grad = torch.randn_like(pooled)
    wanted = operators.aten.max_pool2d_with_indices_backward(grad, x, *geometry, places)
    offsets = Places((13, 11), Windows((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))).offsets(places)
    found = operators.weft.max_pool_backward(grad, offsets, x.shape, order is torch.channels_last, *geometry)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
