"""The model that tiles of products are chosen by."""

from __future__ import annotations

import pytest

from weft.lower.machine import gpu_machine
from weft.lower.schedule.dot_model import Matmuls, estimate, estimates

GPU = gpu_machine()
MEASURED = {  # TFLOP/s on an H200
    (8192, 8192, 8192): 766,
    (4096, 4096, 4096): 779,
    (4096, 14336, 4096): 795,
    (16384, 1280, 8192): 785,
}


@pytest.mark.parametrize("sides", MEASURED)
def test_large_products_take_what_is_predicted(sides: tuple[int, int, int]) -> None:
    m, n, k = sides
    predicted = 2 * m * n * k / estimates(Matmuls(m, n, k), GPU)[0].seconds / 1e12
    assert predicted == pytest.approx(MEASURED[sides], rel=0.08)


def test_tiles_fill_the_last_wave() -> None:
    assert estimates(Matmuls(4096, 4096, 4096), GPU)[0].sides == (128, 256, 64)
    assert estimates(Matmuls(512, 4096, 4096), GPU)[0].sides == (128, 128, 64)


def test_sums_in_parts_and_second_products_take_registers() -> None:
    two = estimates(Matmuls(4096, 4096, 4096, count=2), GPU)
    assert all(2 * each.sides[0] * each.sides[1] <= 128 * 256 for each in two)
    low = estimates(Matmuls(2, 2880, 2880, 32, count=2), GPU, height=64)
    assert low and all(2 * each.sides[1] <= 256 for each in low), "one warp group has half of the registers"
    in_parts = estimates(Matmuls(4096, 4096, 4096, width=1, in_parts=True), GPU)
    assert in_parts[0].sides == (128, 128, 128) and all(each.sides[0] <= 128 for each in in_parts)
    assert estimates(Matmuls(8192, 8192, 8192, width=1, in_parts=True), GPU)[0].sides == (128, 192, 128)


@pytest.mark.parametrize(
    ("products", "tile", "bound"),
    [
        (Matmuls(8192, 8192, 8192), (128, 256), "tensor cores"),
        (Matmuls(4096, 4096, 4096), (128, 128), "the L2 cache"),
        (Matmuls(64, 28672, 4096), (64, 128), "memory"),
    ],
)
def test_the_slowest_part_sets_the_pace(products: Matmuls, tile: tuple[int, int], bound: str) -> None:
    found = estimate(products, tile, GPU)
    assert found.bound == bound and bound in str(found)
