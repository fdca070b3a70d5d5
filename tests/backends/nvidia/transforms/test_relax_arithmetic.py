"""Products and sums of narrow floats are rounded once, as Triton's are; a cast that somebody wrote stays."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import emulate

SIZE = 256


@triton.jit
def mixed(x, y, z, mixed, product, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    scaled = a * b
    tl.store(mixed + i, c - scaled)
    tl.store(product + i, scaled)


@triton.jit
def split(x, y, high, low, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    exact = tl.load(x + i).to(tl.float32) * tl.load(y + i).to(tl.float32)
    upper = exact.to(high.dtype.element_ty)
    tl.store(high + i, upper)
    tl.store(low + i, (exact - upper).to(low.dtype.element_ty))


def drawn(dtype: type, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(SIZE).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_a_product_that_is_added_is_not_rounded_before(dtype: type) -> None:
    x, y, z = drawn(dtype, 3)
    found, product = np.zeros(SIZE, dtype), np.zeros(SIZE, dtype)
    emulate(mixed, x, y, z, found, product, SIZE=SIZE)
    exact = x.astype(np.float64) * y.astype(np.float64)
    np.testing.assert_array_equal(product, exact.astype(np.float32).astype(dtype))
    np.testing.assert_array_equal(found, (z.astype(np.float64) - exact).astype(np.float32).astype(dtype))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_what_a_written_cast_leaves_over_is_not_lost(dtype: type) -> None:
    x, y = drawn(dtype, 2)
    high, low = np.zeros(SIZE, dtype), np.zeros(SIZE, dtype)
    emulate(split, x, y, high, low, SIZE=SIZE)
    exact = x.astype(np.float32) * y.astype(np.float32)
    np.testing.assert_array_equal(high, exact.astype(dtype))
    np.testing.assert_array_equal(low, (exact - high.astype(np.float32)).astype(dtype))
