"""`find_seen_keys`: what is found of masks in memory, and where they are looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from weft.backends.reference.graph import run
from weft.ir.types import Tensor, bf16, boolean
from weft.ops.attention import AnyAttention
from weft.ops.graph import ReturnOp
from weft.passes.find_seen_keys import FindSeenKeys

LENGTH = 512


def seen_of(passes: Any, mask: np.ndarray, rows: int = LENGTH) -> np.ndarray | None:
    """What attention of four heads is told of a mask."""
    tensors = {name: Tensor(bf16, (1, 4, count, 64)) for name, count in (("q", rows), ("k", LENGTH), ("v", LENGTH))}
    tensors["m"] = Tensor(boolean, mask.shape)
    module = passes.built(tensors, lambda b, *x: b.attention(*x, causal=False, scale=0.125))
    FindSeenKeys().apply(Context(), module)
    module.verify()
    function = passes.function(module)
    (attention,) = [op for op in function.block.ops if isinstance(op, AnyAttention)]
    if attention.seen is None:
        return None
    function.returned.detach()
    function.block.add_op(ReturnOp.make([attention.seen]))
    arrays = [np.zeros(tensor.shape, bf16.numpy) for tensor in list(tensors.values())[:3]]  # type: ignore[arg-type]
    (found,) = run(function, [*arrays, mask])
    return found


def test_what_is_seen_of_a_window(passes: Any) -> None:
    row, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    found = seen_of(passes, (row >= key) & (row - key < 200))
    assert found is not None
    expected = [
        [max(0, first - 199), first + 128, max(0, first + 127 - 199), first + 1] for first in range(0, 512, 128)
    ]
    assert found.tolist() == expected


def test_what_all_see_is_one_range_or_none(passes: Any) -> None:
    mask = np.zeros((LENGTH, LENGTH), bool)
    mask[:128, 10:20] = True
    mask[:128, 30:40] = True
    mask[130, 7] = True
    found = seen_of(passes, mask)
    assert found is not None
    assert found[:, :2].tolist() == [[10, 40], [7, 8], [LENGTH, 0], [LENGTH, 0]]
    assert (found[:, 3] <= found[:, 2]).all()


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 4, LENGTH, LENGTH), LENGTH), ((LENGTH,), LENGTH), ((300, LENGTH), 300), ((1, LENGTH), 1)]
)
def test_masks_that_are_not_looked_at(passes: Any, shape: tuple[int, ...], rows: int) -> None:
    assert seen_of(passes, np.ones(shape, bool), rows) is None
