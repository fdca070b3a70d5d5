"""Products that no tensor core takes, as PTX on the emulated GPU: any type, any length of sums."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import emulate


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + depth[None, :])
    right = tl.load(b + depth[:, None] * N + columns[None, :])
    total = tl.dot(left, right, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def summed(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, turns):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for turn in range(turns):
        left = tl.load(a + rows[:, None] * (K * turns) + (turn * K + depth)[None, :])
        right = tl.load(b + (turn * K + depth)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (32, 64, 16), (64, 16, 32)])
@pytest.mark.parametrize("warps", [1, 4])
def test_floats_are_not_rounded(m: int, n: int, k: int, warps: int) -> None:
    random = np.random.default_rng(m + n + k)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    emulate(product, a, b, c, M=m, N=n, K=k, num_warps=warps)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - exact).max() < 4e-7 * np.abs(a).max() * np.abs(b).max() * k


def test_integers_are_exact() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(-128, 128, (32, 32), np.int8), random.integers(-128, 128, (32, 16), np.int8)
    c = np.zeros((32, 16), np.int32)
    emulate(product, a, b, c, M=32, N=16, K=32, num_warps=2)
    assert (c == a.astype(np.int32) @ b.astype(np.int32)).all()


def test_sums_go_from_turn_to_turn() -> None:
    """The same shared memory is written again in every turn, behind a barrier."""
    random = np.random.default_rng(1)
    a, b = random.standard_normal((16, 48), np.float32), random.standard_normal((48, 32), np.float32)
    c = np.full((16, 32), np.nan, np.float32)
    emulate(summed, a, b, c, M=16, N=32, K=16, turns=3, num_warps=4)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-4


def test_what_does_not_fit_is_multiplied_in_parts() -> None:
    random = np.random.default_rng(2)
    a, b = random.standard_normal((32, 512), np.float32), random.standard_normal((512, 32), np.float32)
    c = np.full((32, 32), np.nan, np.float32)
    emulate(product, a, b, c, M=32, N=32, K=512, num_warps=8)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-3
