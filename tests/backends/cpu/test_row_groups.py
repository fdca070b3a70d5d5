"""Blocks of rows: all rows once, and even where their number is known."""

from __future__ import annotations

import pytest

from weft.backends.cpu.row_groups import even_height, row_groups
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import i64


@pytest.mark.parametrize(("extent", "height"), [(14, 14), (28, 14), (49, 13), (15, 8), (3, 3), (196, 14), (99, 13)])
def test_even_blocks_are_as_few_as_can_be(extent: int, height: int) -> None:
    assert even_height(extent, 14) == height
    assert -(-extent // height) == -(-extent // 14)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("extent", [1, 5, 12, 13, 14, 27, 49, 196])
def test_they_cover_all_rows_once(extent: int, even: bool) -> None:
    b = Function(Module("x86_64-unknown-linux-gnu"), "rows", [])
    covered: list[int] = []
    for start, height, count in row_groups(b, i64(extent), extent, 14, even=even):
        assert 0 < height <= 14
        covered += range(int(start.name), int(start.name) + height * int(count.name))
    assert covered == list(range(extent))
