"""Stores that one loop makes: what is computed for a masked one, one element at a time, is not known to the next."""

from __future__ import annotations

import torch

import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def kept_and_thinned(x, thinned, kept, largest):
    # The places of the largest are found one by one, and the stores with them; the read lies across the writes.
    tile = tl.load(x + tl.arange(0, 64)[None, :] * 4 + tl.arange(0, 4)[:, None])
    places = tl.program_id(0) * 256 + tl.arange(0, 4)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(thinned + places, tile, mask=places % 3 != 0)
    tl.store(kept + places, tile)
    tl.store(largest + tl.arange(0, 4), tl.argmax(tile, axis=1))


def test_what_a_mask_guards_is_computed_again_behind_it() -> None:
    x = torch.randn(256)
    thinned, kept, largest = torch.zeros(256), torch.zeros(256), torch.zeros(4, dtype=torch.int32)
    kept_and_thinned[(1,)](x, thinned, kept, largest)
    tile = x.view(64, 4).t().reshape(-1)
    assert torch.equal(kept, tile)
    assert torch.equal(thinned, torch.where(torch.arange(256) % 3 != 0, tile, 0))
    assert torch.equal(largest.long(), tile.view(4, 64).argmax(1))
