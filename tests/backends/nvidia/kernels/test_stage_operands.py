"""Operands of wgmma that threads stage in shared memory: computed, narrowed from 32 bits, or read both ways round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl

from ..ptxas import assemble, needs_ptxas

sys.path[:0] = [str(Path(__file__).parents[1])]
from emulation import compile_like, emulate  # noqa: E402


@triton.jit
def chunk_gradients(
    q, k, v, h, do, dq, dk, T, scale, K: tl.constexpr, V: tl.constexpr, B: tl.constexpr, BV: tl.constexpr
):
    """Gradients of queries and keys in a chunk of linear attention: states in 32 bits, scores read both ways round."""
    rows, along = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, K)
    inside = rows < T
    b_dq = tl.zeros((B, K), dtype=tl.float32)
    b_ds = tl.zeros((B, B), dtype=tl.float32)
    for i in range(tl.cdiv(V, BV)):
        values = i * BV + tl.arange(0, BV)
        there = inside[:, None] & (values < V)[None, :]
        b_v = tl.load(v + rows[:, None] * V + values[None, :], mask=there, other=0.0)
        b_do = tl.load(do + rows[:, None] * V + values[None, :], mask=there, other=0.0)
        b_h = tl.load(h + values[:, None] + along[None, :] * V, mask=(values < V)[:, None], other=0.0)
        b_ds += tl.dot(b_do, tl.trans(b_v))
        b_dq += tl.dot(b_do, b_h.to(b_do.dtype))
    places = rows[:, None] * K + along[None, :]
    b_q = tl.load(q + places, mask=inside[:, None], other=0.0)
    b_k = tl.load(k + places, mask=inside[:, None], other=0.0)
    b_ds = tl.where(rows[:, None] >= rows[None, :], b_ds, 0).to(b_k.dtype)
    b_dq += tl.dot(b_ds, b_k)
    b_dk = tl.dot(tl.trans(b_ds), b_q)
    tl.store(dq + places, b_dq * scale, mask=inside[:, None])
    tl.store(dk + places, b_dk * scale, mask=inside[:, None])


def _chunk_case(length: int, values: int, dtype: Any) -> tuple[list[Any], dict[str, Any], list[np.ndarray]]:
    random, depth, block = np.random.default_rng(length), 64, 64
    q, k = ((0.3 * random.standard_normal((length, depth))).astype(dtype) for _ in range(2))
    v, do = ((0.3 * random.standard_normal((length, values))).astype(dtype) for _ in range(2))
    h = (0.3 * random.standard_normal((depth, values))).astype(np.float32)
    dq, dk = (np.full((length, depth), np.nan, np.float32) for _ in range(2))
    a, b, c, d = (each.astype(np.float64) for each in (q, k, v, do))
    rounded = h.astype(dtype).astype(np.float64)
    wanted = [np.zeros((length, depth)), np.zeros((length, depth))]
    for start in range(0, length, block):
        part = slice(start, start + block)
        scores = np.tril(d[part] @ c[part].T)
        wanted[0][part] = 0.5 * (d[part] @ rounded.T + scores @ b[part])
        wanted[1][part] = 0.5 * (scores.T @ a[part])
    return [q, k, v, h, do, dq, dk, length, 0.5], {"K": depth, "V": values, "B": block, "BV": 64}, wanted


@pytest.mark.parametrize("length, values, dtype", [(128, 64, ml_dtypes.bfloat16), (101, 120, np.float16)])
def test_states_are_narrowed_and_scores_read_both_ways(length: int, values: int, dtype: Any) -> None:
    args, options, wanted = _chunk_case(length, values, dtype)
    options["num_warps"] = 4
    code = compile_like(chunk_gradients, args, options, "sm_90a").code
    assert "wgmma.mma_async" in code.ptx and "mma.sync" not in code.ptx
    emulate(chunk_gradients, *args, grid=(-(-length // 64),), **options)
    for got, right in zip(args[5:7], wanted, strict=True):
        assert np.linalg.norm(got - right) < 6e-3 * np.linalg.norm(right)


@needs_ptxas
def test_no_registers_hold_what_is_staged() -> None:
    args, options, _ = _chunk_case(128, 128, ml_dtypes.bfloat16)
    code = compile_like(chunk_gradients, args, {**options, "BV": 128, "num_warps": 4}, "sm_90a").code
    assert assemble(code.ptx, "sm_90a").kernels["chunk_gradients"].spilled == 0


@triton.jit
def running_state(k, v, q, out, T, L: tl.constexpr, B: tl.constexpr, K: tl.constexpr, V: tl.constexpr):
    """A state that is carried in 32 bits, read by queries in 16 and added to by turned keys, in a branch."""
    along, across = tl.arange(0, K), tl.arange(0, V)
    state = tl.zeros((K, V), dtype=tl.float32)
    for i in range(tl.cdiv(T, B)):
        rows = i * B + tl.arange(0, B)
        inside = (rows < T)[:, None]
        b_q = tl.load(q + rows[:, None] * K + along[None, :], mask=inside, other=0.0)
        tl.store(out + rows[:, None] * V + across[None, :], tl.dot(b_q, state.to(b_q.dtype)), mask=inside)
        if i * B < L:
            b_k = tl.load(k + rows[:, None] * K + along[None, :], mask=inside, other=0.0)
            b_v = tl.load(v + rows[:, None] * V + across[None, :], mask=inside, other=0.0)
            b_v = (b_v * (rows[:, None] % 2)).to(b_k.dtype)
            state += tl.dot(tl.trans(b_k), b_v)


@pytest.mark.parametrize("length, limit, warps", [(150, 100, 4), (64, 64, 4)])
def test_a_state_is_carried_through_branches(length: int, limit: int, warps: int) -> None:
    random, depth, width, block = np.random.default_rng(limit), 64, 128, 64
    q, k = ((0.3 * random.standard_normal((length, depth))).astype(ml_dtypes.bfloat16) for _ in range(2))
    v = random.standard_normal((length, width)).astype(ml_dtypes.bfloat16)
    out = np.full((length, width), np.nan, np.float32)
    options: dict[str, Any] = {"L": limit, "B": block, "K": depth, "V": width, "num_warps": warps}
    code = compile_like(running_state, (k, v, q, out, length), options, "sm_90a").code
    assert "wgmma.mma_async" in code.ptx and "mma.sync" not in code.ptx
    emulate(running_state, k, v, q, out, length, **options)
    state, (a, b, c) = np.zeros((depth, width)), (each.astype(np.float64) for each in (q, k, v))
    for start in range(0, length, block):
        part = slice(start, start + block)
        right = a[part] @ state.astype(ml_dtypes.bfloat16).astype(np.float64)
        assert np.linalg.norm(out[part] - right) <= 4e-3 * np.linalg.norm(right)
        if start < limit:
            state += b[part].T @ (c[part] * (np.arange(length)[part] % 2)[:, None])


@triton.jit
def chained(x, y, out, B: tl.constexpr):
    places = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    a, b = tl.load(x + places), tl.load(y + places)
    tl.store(out + places, tl.dot(a, tl.dot(a, b).to(a.dtype)))


def test_a_dot_is_the_right_operand_of_another() -> None:
    random, block = np.random.default_rng(3), 64
    x, y = ((0.3 * random.standard_normal((block, block))).astype(np.float16) for _ in range(2))
    out = np.full((block, block), np.nan, np.float32)
    assert "wgmma.mma_async" in compile_like(chained, (x, y, out), {"B": block, "num_warps": 4}, "sm_90a").code.ptx
    emulate(chained, x, y, out, B=block, num_warps=4)
    a, b = x.astype(np.float64), y.astype(np.float64)
    assert np.linalg.norm(out - a @ (a @ b)) < 2e-3 * np.linalg.norm(a @ (a @ b))


@triton.jit
def after_a_loop(x, y, z, w, out, turns, B: tl.constexpr):
    places = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    a = tl.load(x + places)
    total = tl.zeros((B, B), dtype=tl.float32)
    for turn in range(turns):
        b = tl.load(y + turn * B * B + places)
        total += tl.dot(a, (b * 2).to(a.dtype))
    c, d = tl.load(z + places), tl.load(w + places)
    total += tl.dot((c.to(tl.float32) * 2).to(c.dtype), (d.to(tl.float32) * 2).to(d.dtype))
    tl.store(out + places, total)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_copy_that_no_dot_waited_for_does_not_land_on_what_is_laid_later(turns: int) -> None:
    random = np.random.default_rng(turns)
    x, z, w = ((0.3 * random.standard_normal((64, 64))).astype(np.float16) for _ in range(3))
    y = (0.3 * random.standard_normal((2, 64, 64))).astype(np.float16)
    found = np.full((64, 64), np.nan, np.float32)
    emulate(after_a_loop, x, y, z, w, found, turns, B=64, num_warps=4)
    a, b, c, d = (each.astype(np.float64) for each in (x, y, z, w))
    np.testing.assert_allclose(found, 4 * (c @ d) + sum(a @ (2 * b[i]) for i in range(turns)), atol=1e-4)


@triton.jit
def changed_after_it_is_read(x, y, out, B: tl.constexpr):
    places = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    a, b = tl.load(x + places), tl.load(y + places)
    tl.store(x + places, b)
    tl.store(out + places, tl.dot(a, (b.to(tl.float32) * 3).to(b.dtype)))


def test_what_is_written_later_is_read_before_and_not_copied() -> None:
    random = np.random.default_rng(5)
    x, y = ((0.3 * random.standard_normal((64, 64))).astype(np.float16) for _ in range(2))
    a, found = x.astype(np.float64), np.full((64, 64), np.nan, np.float32)
    emulate(changed_after_it_is_read, x, y, found, B=64, num_warps=4)
    np.testing.assert_allclose(found, a @ (3 * y).astype(np.float64), atol=1e-2)
    np.testing.assert_array_equal(x, y)
    code = compile_like(changed_after_it_is_read, (x, y, found), {"B": 64, "num_warps": 4}, "sm_90a").code
    assert "cp.async.ca" not in code.ptx and "cp.async.cg" not in code.ptx
