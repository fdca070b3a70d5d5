"""Channels that lie innermost stay innermost: around calls to torch's libraries nothing is copied to and fro."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.frontends.torch.importer import opaque
from weft.runtime.record import recording


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the operands that had to be copied for a call."""
    found: list[tuple[int, ...]] = []
    original = opaque.restrided

    def count(tensor: torch.Tensor, strides: Any) -> torch.Tensor:
        if tensor.stride() != tuple(strides):
            found.append(tuple(tensor.shape))
        return original(tensor, strides)

    monkeypatch.setattr(opaque, "restrided", count)
    return found


def test_channels_last(copies: list[tuple[int, ...]]) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(16, 4, 1)),
    ).eval()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    with torch.no_grad(), recording() as records:
        found, expected = compiled(x), model(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    assert copies == []
    plan = records[0].plan
    assert plan is not None
    images = [buffer for buffer in plan.buffers if buffer.role == "temporary" and buffer.tensor.rank == 4]
    # Neighbours in memory are the channels of a place; no side of an image is as long as they are many.
    assert images and all(b.tensor.shape[b.layout.strides.index(1)] in (3, 8, 16, 4) for b in images)


def test_row_major_images(copies: list[tuple[int, ...]]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()).eval()
    x = torch.randn(2, 3, 8, 8)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride() and copies == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_get_no_tensors_that_run_backwards(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.flip(0)
        return torch.linalg.inv(turned), torch.linalg.inv(x[2:].flip(0)), (turned + 1).flip(0) @ x.flip(0, 1).mT

    torch.compiler.reset()
    x = torch.randn(5, 40, 40) + 40 * torch.eye(40)
    found = torch.compile(f, backend="weft", dynamic=dynamic, options={"cache": False})(x)
    for mine, eager in zip(found, f(x), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logsigmoid_of_a_strided_tensor_lies_as_in_eager(dtype: torch.dtype) -> None:
    x = torch.randn(6, 4, dtype=dtype).t().requires_grad_()
    torch.compiler.reset()
    found = torch.compile(F.logsigmoid, backend="weft", options={"cache": False})(x)
    expected = F.logsigmoid(x)
    assert found.stride() == expected.stride() == (6, 1)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0])
