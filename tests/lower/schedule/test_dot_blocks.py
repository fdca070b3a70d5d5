"""Blocks of products for many cores: even ones, whatever the number of threads."""

from __future__ import annotations

import pytest

from weft.ir.types import bf16, f32
from weft.lower.machine import CPU, Machine
from weft.lower.schedule.dot_blocks import even_blocks
from weft.lower.schedule.schedule import choose_blocks

UNIT = (12, 32)
MANY = Machine(product_rows=12)
SHAPES = [(128, 384, 384), (128, 1536, 384), (64, 768, 3072), (197, 384, 1536), (1024, 1536, 384), (4096, 1536, 384)]


def programs(m: int, n: int, sides: tuple[int, ...]) -> int:
    return -(-m // sides[0]) * -(-n // sides[1])


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_eight_threads_have_about_the_same_to_do(m: int, n: int, k: int) -> None:
    count = programs(m, n, even_blocks(m, n, k, 1, UNIT, 256))
    assert count / 8 / -(-count // 8) >= 0.9


@pytest.mark.parametrize(("side", "channels"), [(56, 64), (28, 128), (14, 256)])
def test_rows_of_windows_are_even_for_eight_threads(side: int, channels: int) -> None:
    """Each row of an image is one of a batch; more blocks of columns cost little, since windows overlap."""
    sides = even_blocks(side, channels, 3 * channels, side, (14, 32), 256, windows=True)
    count = side * programs(side, channels, sides)
    assert count / 8 / -(-count // 8) >= 0.99


def test_columns_are_whole_panels_and_rows_whole_micro_kernels_or_even() -> None:
    for m, n, k in [(1, 1, 1), (1, 50257, 768), (7, 33, 5), (100_000, 64, 576), (49, 2048, 512), (3136, 64, 64)]:
        rows, columns = even_blocks(m, n, k, 1, UNIT, 256)
        assert 0 < rows <= min(m, 256) and columns % 32 == 0 and 0 < columns <= max(32, n + 31)


def test_batches_count_as_programs() -> None:
    alone, many = (even_blocks(64, 64, 64, batch, UNIT, 256) for batch in (1, 96))
    assert programs(64, 64, many) <= programs(64, 64, alone)


def test_they_are_chosen_for_packed_weights_of_machines_with_many_cores_alone() -> None:
    chosen = choose_blocks(128, 384, 384, [], f32, 32, True, machine=MANY)
    assert chosen.sides[:2] == even_blocks(128, 384, 384, 1, UNIT, chosen.sides[2])
    assert choose_blocks(128, 384, 384, [], f32, None, True, machine=MANY).sides[0] == 128
    assert choose_blocks(128, 384, 384, [], f32, 32, True, machine=CPU).sides == (128, 64, 384)


@pytest.mark.parametrize("k", [100, 1536, 1537, 4097, 9000])
def test_blocks_of_joined_neighbours_end_where_steps_do(k: int) -> None:
    *_, depth = choose_blocks(64, 64, k, [], bf16, 32, True, machine=MANY, joined=True).sides
    assert depth == k or depth % 64 == 0
