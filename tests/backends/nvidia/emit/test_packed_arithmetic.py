"""Sums and products of narrow floats are one instruction for two of them, and have the bits they had."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import compile_like, emulate

SIZE = 512


@triton.jit
def arithmetic(x, y, factor, total, difference, product, scaled, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(total + i, a + b)
    tl.store(difference + i, a - b)
    tl.store(product + i, (a * b) * a)
    tl.store(scaled + i, a * tl.load(factor))


def numbers(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    x, y = (rng.standard_normal(SIZE) * 2.0 ** rng.integers(-12, 12, SIZE) for _ in range(2))
    x[:8] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7, 6e4, -6e4]
    y[:8] = [1.0, np.inf, 1.0, -0.0, -0.0, 1e-7, 6e4, 1e-6]
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_bits_are_those_of_one_rounding(dtype: type) -> None:
    (x, y), factor = numbers(dtype), np.array([0.3], dtype)
    total, difference, product, scaled = (np.zeros(SIZE, dtype) for _ in range(4))
    emulate(arithmetic, x, y, factor, total, difference, product, scaled, SIZE=SIZE)
    a, b = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        first = (a * b).astype(dtype).astype(np.float32)
        expected = [a + b, a - b, first * a, a * factor.astype(np.float32)]
        for found, wide in zip((total, difference, product, scaled), expected, strict=True):
            right = wide.astype(dtype)
            same = (found.view(np.uint16) == right.view(np.uint16)) | (np.isnan(found) & np.isnan(right))
            assert same.all(), (found[~same], right[~same])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_nothing_is_widened(dtype: type) -> None:
    """Four elements a thread: each operation is two instructions."""
    arrays = [np.zeros(SIZE, dtype) for _ in range(7)]
    ptx = compile_like(arithmetic, arrays, {"SIZE": SIZE}, "sm_90a").code.ptx
    assert ptx.count("fma.rn.") == 10 and "mul.f32" not in ptx and "cvt.rn." not in ptx


@triton.jit
def copied(x, y, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(y + i, tl.load(x + i))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_a_copy_is_moved_as_it_is(dtype: type) -> None:
    x, y = numbers(dtype)
    emulate(copied, x, y, SIZE=SIZE)
    np.testing.assert_array_equal(x.view(np.uint16), y.view(np.uint16))
    assert "cvt" not in compile_like(copied, [x, y], {"SIZE": SIZE}, "sm_90a").code.ptx
