"""A tile that is read as it is and transposed in one loop is kept as it is, whichever reading comes last."""

from __future__ import annotations

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def differences(x, turned, out, n):
    places = tl.program_id(0) * 256 + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(x + places, mask=places < n, other=0)
    less = tile - tl.max(tile, axis=0)[:, None]
    tl.store(turned + places, tl.trans(tile))
    tl.store(out + places, less - tl.trans(tile))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_it_is_written_along_its_own_axis(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (1280,)).to(dtype)
    turned, out = torch.zeros_like(x), torch.zeros_like(x)
    differences[(5,)](x, turned, out, 1280)
    tiles = x.view(5, 16, 16)
    assert torch.equal(turned.view(5, 16, 16), tiles.mT)
    assert torch.equal(out.view(5, 16, 16), tiles - tiles.amax(1)[:, :, None] - tiles.mT)
