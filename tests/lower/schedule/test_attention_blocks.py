"""Blocks of attention on a GPU: as many rows as leave little beyond the last one, and past the diagonal."""

from __future__ import annotations

import pytest

from weft.lower.machine import gpu_machine
from weft.lower.schedule.schedule import choose_attention_blocks


@pytest.mark.parametrize(
    ("length", "causal", "rows"),
    [(197, False, 128), (256, True, 128), (384, False, 192), (384, True, 128), (1000, True, 128), (4096, True, 192)],
)
def test_three_warp_groups_share_keys_where_rows_fill_their_tiles(length: int, causal: bool, rows: int) -> None:
    chosen = choose_attention_blocks(length, length, 64, 64, gpu_machine(), causal=causal)
    assert chosen.sides == (rows, 128, 64, 64)


def test_threads_that_multiply_hold_fewer_sums_of_tangents_than_tensor_cores() -> None:
    given = {"moved": True, "on_tensor_cores": False}
    assert choose_attention_blocks(512, 512, 256, 256, gpu_machine(), **given).sides == (64, 32, 256, 128)
    assert choose_attention_blocks(512, 512, 256, 256, gpu_machine(), moved=True).sides == (128, 48, 256, 256)
