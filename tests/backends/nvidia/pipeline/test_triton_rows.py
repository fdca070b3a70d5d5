"""Kernels of Triton's language over rows: loops that turn once, what is not read, rough and exact quotients."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.tile import control_flow
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas
from ..transforms.test_raise_pointers import kernel_for

sys.path[:0] = [str(Path(__file__).parents[1])]
from emulation import compile_like, emulate  # noqa: E402

from weft.backends.nvidia.target import target_named  # noqa: E402
from weft.backends.nvidia.transforms.straighten_loops import StraightenLoops  # noqa: E402

RANDOM = np.random.default_rng(11)


@triton.jit
def normalized(x, y, w, means, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * N
    y += row * N
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, N, BLOCK):
        places = at + tl.arange(0, BLOCK)
        total += tl.load(x + places, mask=places < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], tl.float32)
    for at in range(0, N, BLOCK):
        places = at + tl.arange(0, BLOCK)
        away = tl.where(places < N, tl.load(x + places, mask=places < N, other=0.0).to(tl.float32) - mean, 0.0)
        squares += away * away
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + 1e-5)
    tl.store(means + row, mean)
    for at in range(0, N, BLOCK):
        places = at + tl.arange(0, BLOCK)
        value = tl.load(x + places, mask=places < N, other=0.0).to(tl.float32)
        tl.store(y + places, (value - mean) * scale * tl.load(w + places, mask=places < N), mask=places < N)


def rows(count: int, columns: int) -> tuple[np.ndarray, ...]:
    x = RANDOM.standard_normal((count, columns)).astype(np.float16)
    w = RANDOM.standard_normal(columns).astype(np.float16)
    return x, np.full_like(x, np.nan), w, np.zeros(count, np.float32)


@pytest.mark.parametrize("columns", [200, 256, 300, 1024])
def test_rows_of_one_block_and_of_several(columns: int) -> None:
    x, y, w, means = arrays = rows(3, columns)
    emulate(normalized, *arrays, columns, grid=(3,), BLOCK=256)
    exact = x.astype(float)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(y, exact, rtol=4e-3, atol=4e-3)
    np.testing.assert_allclose(means, x.astype(float).mean(1), rtol=1e-5, atol=1e-6)


def test_a_row_of_one_block_is_read_once() -> None:
    kernel = kernel_for(normalized, (*rows(3, 256), 256), BLOCK=256)
    StraightenLoops().run(kernel, target_named("sm_90a"), [])
    (branch,) = [op for op in kernel.block.ops if isinstance(op, control_flow.IfOp)]
    assert not any(isinstance(op, tile.ForOp) for op in branch.then.block.ops)
    assert sum(isinstance(op, tile.GatherOp) for op in branch.then.block.ops) == 2
    assert sum(isinstance(op, tile.ForOp) for op in branch.otherwise.block.ops) == 3


@triton.jit
def in_place(x, y, N, BLOCK: tl.constexpr):
    for at in range(0, N, BLOCK):
        places = at + tl.arange(0, BLOCK)
        tl.store(x + places, tl.load(x + places, mask=places < N) + 1, mask=places < N)
    for at in range(0, N, BLOCK):
        places = at + tl.arange(0, BLOCK)
        tl.store(y + places, tl.load(x + places, mask=places < N) * 2, mask=places < N)


@pytest.mark.parametrize("count", [0, 64, 100])
def test_what_is_written_in_between_is_read_again(count: int) -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    emulate(in_place, x, y, count, BLOCK=64)
    expected = np.arange(128) + (np.arange(128) < count)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, np.where(np.arange(128) < count, 2 * expected, 0))


@triton.jit
def filled(x, y, N, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y + places, tl.load(x + places, mask=places < N, other=OTHER))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("other", [0, -3, 7])
def test_what_is_not_read_is_the_other_number(dtype: type[np.generic], other: int) -> None:
    x, y = RANDOM.integers(-9, 9, 64).astype(dtype), np.zeros(64, dtype)
    emulate(filled, x, y, 48, OTHER=other, BLOCK=64)
    np.testing.assert_array_equal(y, np.where(np.arange(64) < 48, x, other))


def test_infinity_needs_no_choice() -> None:
    x, y = RANDOM.standard_normal(64).astype(np.float16), np.zeros(64, np.float16)
    emulate(filled, x, y, 48, OTHER=-float("inf"), BLOCK=64)
    np.testing.assert_array_equal(y, np.where(np.arange(64) < 48, x, -np.inf))
    assert "selp" not in compile_like(filled, (x, y, 48), {"OTHER": -float("inf"), "BLOCK": 64}, "sm_90a").code.ptx


@triton.jit
def quotients(x, y, rough, exact, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    a, b = tl.load(x + places), tl.load(y + places)
    tl.store(rough + places, a / b + tl.sqrt(b))
    tl.store(exact + places, tl.div_rn(b, a) + tl.sqrt_rn(a))


def test_exact_quotients_and_roots_stay_exact() -> None:
    x, y = (RANDOM.random(64, np.float32) + 1 for _ in range(2))
    rough, exact = np.zeros_like(x), np.zeros_like(x)
    ptx = compile_like(quotients, (x, y, rough, exact), {"BLOCK": 64}, "sm_90a").code.ptx
    assert all(name in ptx for name in ("div.full.f32", "div.rn.f32", "sqrt.approx.f32", "sqrt.rn.f32"))
    emulate(quotients, x, y, rough, exact, BLOCK=64)
    np.testing.assert_array_equal(exact, y / x + np.sqrt(x))
    np.testing.assert_allclose(rough, x / y + np.sqrt(y), rtol=1e-6)


@triton.jit
def numbered(out):
    at = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(out + at, tl.program_id(0) + 100 * tl.program_id(1) + 10000 * tl.program_id(2))


@pytest.mark.parametrize("grid", [(7, 1, 1), (3, 2, 1), (2, 1, 3), (2, 3, 4), (1, 5, 1)])
def test_numbers_of_programs(grid: tuple[int, int, int]) -> None:
    x, y, z = grid
    out = np.full((z, y, x), -1, np.int32)
    emulate(numbered, out, grid=grid)
    expected = np.arange(x) + 100 * np.arange(y)[:, None] + 10000 * np.arange(z)[:, None, None]
    np.testing.assert_array_equal(out, expected)


@triton.jit
def locked(lock, total, N: tl.constexpr):
    places = tl.arange(0, N)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total + places, tl.load(total + places) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@needs_ptxas
def test_one_thread_fences_what_all_have_written() -> None:
    args = (np.zeros(1, np.int32), np.zeros(64, np.float32))
    code = compile_like(locked, args, {"N": 64}, "sm_90a")
    assert not assemble(code.code.ptx, "sm_90a").error
    ptx = code.code.ptx
    for fence in re.finditer(
        r"fence\.(release|acquire)\.gpu", ptx
    ):  # between a branch that others take and the next label
        before = ptx[: fence.start()].rstrip().splitlines()[-3:]
        assert any("atom" in line or re.search(r"@%p\d+ bra", line) for line in before)
