"""Arithmetic of kernels that people write is rounded as Triton rounds it; a cast that somebody wrote stays."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.triton.language.extra import libdevice

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import compile_like, emulate

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


@triton.jit
def curves(x, powers, rising, turning, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a = tl.load(x + i)
    tl.store(powers + i, tl.exp(a))
    tl.store(rising + i, a * tl.sigmoid(a))
    tl.store(turning + i, libdevice.tanh(a))


def test_exponentials_are_powers_of_two_of_a_rounded_product() -> None:
    """One multiplication and one instruction; a sigmoid has no tests for divisors that have no reciprocal."""
    x = np.linspace(-30, 30, SIZE, dtype=np.float32)
    x[:6] = [np.inf, -np.inf, np.nan, 0, -100, 100]
    powers, rising, turning = (np.zeros(SIZE, np.float32) for _ in range(3))
    emulate(curves, x, powers, rising, turning, SIZE=SIZE)
    ptx = compile_like(curves, [x, powers, rising, turning], {"SIZE": SIZE}, "sm_90a").code.ptx
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(powers, np.exp(wide).astype(np.float32), rtol=2**-18, atol=1e-37)
        np.testing.assert_allclose(rising, (wide / (1 + np.exp(-wide))).astype(np.float32), rtol=2**-18, atol=1e-37)
    np.testing.assert_allclose(turning, np.tanh(wide), rtol=2**-21)
    assert "ex2.approx.f32" not in ptx and "div.full" not in ptx


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrowed_hyperbolic_tangents(dtype: type) -> None:
    """Good to more digits than are kept, the small ones, too."""
    x = (np.geomspace(2**-12, 30, SIZE) * np.tile([1, -1], SIZE // 2)).astype(dtype)
    x[:5] = [np.inf, -np.inf, np.nan, 0, 2**-14]
    found = np.zeros(SIZE, dtype)
    emulate(narrow_tanh, x, found, SIZE=SIZE)
    exact = np.tanh(x.astype(np.float64))
    spacing = 2.0 ** (-8 if dtype is ml_dtypes.bfloat16 else -11)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=spacing * 1.02)


@triton.jit
def narrow_tanh(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, libdevice.tanh(tl.load(x + i).to(tl.float32)).to(out.dtype.element_ty))


@triton.jit
def exact_powers(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, libdevice.exp(tl.load(x + i)))


def test_exponentials_of_libdevice_are_rounded_well() -> None:
    x, found = np.linspace(-87, 88, SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    emulate(exact_powers, x, found, SIZE=SIZE)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(found - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
