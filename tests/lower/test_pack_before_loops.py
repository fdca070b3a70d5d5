"""Copies that fill panels before a loop: together they make what packing a constant makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from weft.ir.types import DType, bf16, f32, i16, i32
from weft.lower.pack_before_loops import copies_into_panels, in_words
from weft.lower.packing import PackedPanels, Packing
from weft.ops.layouts import StridedLayout


def seen(memory: np.ndarray, shape: Sequence[int], layout: StridedLayout) -> np.ndarray:
    numbers = [step for step in (*layout.strides, layout.offset) if isinstance(step, int)]
    steps = [step * memory.itemsize for step in numbers[:-1]]
    return np.lib.stride_tricks.as_strided(memory[numbers[-1] :], tuple(shape), steps)


def filled(packing: Packing, memory: np.ndarray) -> np.ndarray:
    panels = packing.panels
    made = np.zeros(int(np.prod(panels.shape)), panels.dtype.numpy)
    source = memory.view(panels.dtype.numpy)
    for shape, read, written in copies_into_panels(packing):
        seen(made, shape, written)[...] = seen(source, shape, read)
    return made.reshape(panels.shape)


def packing(K: int, N: int, NR: int, dtype: DType, together: int, batch: tuple[int, ...], turned: bool) -> Packing:
    unit = 32 if together > 1 else 1
    panels = PackedPanels(K, N, NR, dtype, int(np.prod(batch)), together, unit)
    over = tuple(K * N * int(np.prod(batch[d + 1 :])) for d in range(len(batch)))
    return Packing(0, panels, batch, (*over, *((1, K) if turned else (N, 1))), 0)


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(("K", "N"), [(64, 96), (64, 100), (200, 64), (37, 33), (1, 5)])
@pytest.mark.parametrize(("dtype", "together"), [(f32, 1), (i16, 2)])
def test_copies_make_what_packing_makes(K, N, batch, turned, dtype, together):
    made = packing(K, N, 32, dtype, together, batch, turned)
    count = K * N * int(np.prod(batch))
    memory = np.arange(1, count + 1).astype(dtype.numpy)
    np.testing.assert_array_equal(filled(made, memory), made.pack(memory))


def test_pairs_of_halves_are_copied_as_words():
    pairs = packing(64, 100, 32, bf16, 2, (2,), True)
    words = in_words(pairs)
    assert words is not None and words.panels.dtype == i32
    memory = np.arange(1, 64 * 100 * 2 + 1).astype(np.uint16)
    found = filled(words, memory).view(np.uint16).reshape(pairs.panels.shape)
    np.testing.assert_array_equal(found, pairs.pack(memory.view(bf16.numpy)).view(np.uint16))


@pytest.mark.parametrize(
    ("K", "dtype", "together", "turned"),
    [(64, f32, 1, True), (64, bf16, 2, False), (63, bf16, 2, True), (48, bf16, 2, True)],
)
def test_what_are_no_words_are_copied_one_by_one(K, dtype, together, turned):
    """Neighbours of packed weights that lie apart, halves of a word, and panels that are filled up."""
    assert in_words(packing(K, 64, 32, dtype, together, (), turned)) is None
