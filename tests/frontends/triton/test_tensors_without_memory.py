"""Kernels take tensors that hold data: others are refused, compiled and interpreted, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import WeftError


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places, mask=places < n) * 2, mask=places < n)


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(8)


def _released() -> torch.Tensor:
    tensor = torch.randn(8)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(
    "made",
    [lambda: torch.empty(8, device="meta"), _fake, _released, lambda: torch.ones(8).to_sparse()],
    ids=["meta", "fake", "released", "sparse"],
)
@pytest.mark.filterwarnings("error")
def test_they_are_refused(made: Callable[[], torch.Tensor], interpreted: bool) -> None:
    out = torch.full((8,), -7.0)
    with triton.interpret() if interpreted else nullcontext(), pytest.raises(WeftError, match="has no memory"):
        double[(1,)](made(), out, 8, BLOCK=8)
    assert torch.equal(out, torch.full((8,), -7.0))


@pytest.mark.parametrize("interpreted", [False, True])
def test_empty_ones_are_not(interpreted: bool) -> None:
    with triton.interpret() if interpreted else nullcontext():
        double[(1,)](torch.empty(0), torch.empty(0), 0, BLOCK=8)
