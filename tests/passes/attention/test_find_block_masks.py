"""`find_block_masks`: what is found of masks in memory, and where they are looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from weft.backends.reference.graph import run
from weft.ir.types import Tensor, bf16, boolean
from weft.ops.graph import ReturnOp
from weft.ops.matmul.attention import AnyAttention
from weft.passes.attention.find_block_masks import FindBlockMasks

LENGTH = 512


def seen_of(passes: Any, mask: np.ndarray, rows: int = LENGTH) -> list[list[int]] | None:
    """What attention of four heads is told of a mask, of each tile: first and last key, those left alone, a prefix."""
    tensors = {name: Tensor(bf16, (1, 4, count, 64)) for name, count in (("q", rows), ("k", LENGTH), ("v", LENGTH))}
    tensors["m"] = Tensor(boolean if mask.dtype == bool else bf16, mask.shape)
    module = passes.built(tensors, lambda b, *x: b.attention(*x, causal=False, scale=0.125))
    FindBlockMasks().apply(Context(), module)
    module.verify()
    function = passes.function(module)
    (attention,) = [op for op in function.block.ops if isinstance(op, AnyAttention)]
    if not attention.seen:
        return None
    function.returned.detach()
    function.block.add_op(ReturnOp.make(attention.seen))
    arrays = [np.zeros(tensor.shape, bf16.numpy) for tensor in list(tensors.values())[:3]]  # type: ignore[arg-type]
    return np.concatenate(run(function, [*arrays, mask]), 1).tolist()


ROW, KEY = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
WINDOW = (ROW >= KEY) & (ROW - KEY < 256)
SEEN_OF_WINDOW = [[0, 128, 0, 0, 0], [0, 256, 0, 128, 0], [0, 384, 128, 256, 0], [128, 512, 256, 384, 0]]


def as_added(mask: np.ndarray) -> np.ndarray:
    return np.where(mask, 0.0, -np.inf).astype(bf16.numpy)


def test_what_is_seen_of_a_window(passes: Any) -> None:
    assert seen_of(passes, WINDOW) == SEEN_OF_WINDOW
    assert seen_of(passes, as_added(WINDOW)) == SEEN_OF_WINDOW


def test_numbers_that_are_added_are_seen_and_not_left_alone(passes: Any) -> None:
    mask = as_added(WINDOW)
    mask[260, 130] = 0.5
    expected = [list(tile) for tile in SEEN_OF_WINDOW]
    expected[2][2:4] = [0, 0]
    assert seen_of(passes, mask) == expected


def test_first_keys_are_seen_beside_a_window(passes: Any) -> None:
    near = (ROW >= KEY) & ((ROW - KEY < 20) | (KEY < 4))
    expected = [[0, 128, 0, 0, 0], [0, 256, 0, 0, 0], [0, 384, 0, 0, 0], [256, 512, 0, 0, 128]]
    assert seen_of(passes, near) == expected


def test_what_all_see_is_one_range_or_none(passes: Any) -> None:
    mask = np.zeros((LENGTH, LENGTH), bool)
    mask[:128, :128] = mask[:128, 256:384] = True
    mask[128:256] = True
    mask[130, 140] = False
    mask[260, 140] = True
    assert seen_of(passes, mask) == [
        [256, 384, 256, 384, 128],
        [0, 512, 0, 0, 0],
        [128, 256, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 4, LENGTH, LENGTH), LENGTH), ((LENGTH,), LENGTH), ((300, LENGTH), 300), ((1, LENGTH), 1)]
)
def test_masks_that_are_not_looked_at(passes: Any, shape: tuple[int, ...], rows: int) -> None:
    assert seen_of(passes, np.ones(shape, bool), rows) is None
