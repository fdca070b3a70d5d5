"""Left operands of tensor-core dots that are computed, rounded to 16 bits and turned over in registers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl

sys.path[:0] = [str(Path(__file__).parents[1])]
from emulation import compile_like, emulate  # noqa: E402


@triton.jit
def weighted_sums(x, q, out, T, D: tl.constexpr, B: tl.constexpr, TURNED: tl.constexpr) -> None:
    """`softplus(x q^T)`, turned or not, times q, over blocks of rows: as in the backward pass of attention."""
    columns = tl.program_id(0) * B + tl.arange(0, B)
    along = tl.arange(0, D)
    b_x = tl.load(x + columns[:, None] * D + along[None, :], mask=columns[:, None] < T, other=0.0)
    total = tl.zeros((B, D), dtype=tl.float32)
    for block in range(0, tl.cdiv(T, B)):
        rows = block * B + tl.arange(0, B)
        b_q = tl.load(q + rows[:, None] * D + along[None, :], mask=rows[:, None] < T, other=0.0)
        if TURNED:
            scores = tl.dot(b_q, tl.trans(b_x))
            left = tl.trans(tl.log(1 + tl.exp(scores))).to(q.dtype.element_ty)
        else:
            scores = tl.dot(b_x, tl.trans(b_q))
            left = tl.log(1 + tl.exp(scores)).to(q.dtype.element_ty)
        total = tl.dot(left, b_q, acc=total)
    tl.store(out + columns[:, None] * D + along[None, :], total, mask=columns[:, None] < T)


@pytest.mark.parametrize(
    "turned, block, dtype, length",
    [(False, 64, np.float16, 100), (True, 64, ml_dtypes.bfloat16, 128), (True, 128, np.float16, 70)],
)
def test_a_rounded_tile_is_packed_wherever_it_was_turned(turned: bool, block: int, dtype: Any, length: int) -> None:
    random, depth = np.random.default_rng(length), 64
    x, q = ((0.3 * random.standard_normal((length, depth))).astype(dtype) for _ in range(2))
    out = np.full((length, depth), np.nan, np.float32)
    options = {"D": depth, "B": block, "TURNED": turned, "num_warps": block // 16}
    code = compile_like(weighted_sums, (x, q, out, length), options, "sm_90a").code
    assert "wgmma.mma_async" in code.ptx and code.launches["weighted_sums"].maps
    emulate(weighted_sums, x, q, out, length, grid=(-(-length // block),), **options)
    a, b = x.astype(np.float64), q.astype(np.float64)
    wanted = np.log1p(np.exp(a @ b.T)) @ b
    assert np.linalg.norm(out - wanted) < 4e-3 * np.linalg.norm(wanted)
