"""How many registers the assembler gives kernels that people write: few enough for blocks beside each other."""

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
from emulation import compile_like  # noqa: E402


@triton.jit
def gated(a, b, out, N: tl.constexpr, B: tl.constexpr) -> None:
    columns = tl.arange(0, B)
    x = tl.load(a + tl.program_id(0) * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    y = tl.load(b + tl.program_id(0) * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0) * N + columns, x * tl.sigmoid(x) * y, mask=columns < N)


@triton.jit
def scaled(x, factor, N, B: tl.constexpr) -> None:
    by = tl.load(factor)
    for i in range(0, N, B):
        columns = i + tl.arange(0, B)
        values = tl.load(x + tl.program_id(0) * N + columns, mask=columns < N, other=0.0)
        tl.store(x + tl.program_id(0) * N + columns, values * by, mask=columns < N)


@needs_ptxas
@pytest.mark.parametrize("name, block, warps, most", [("gated", 8192, 16, 40), ("scaled", 32768, 32, 32)])
def test_elementwise_kernels_leave_registers_for_blocks_beside_them(
    name: str, block: int, warps: int, most: int
) -> None:
    rows = np.zeros((2, block), ml_dtypes.bfloat16)
    args: dict[str, tuple[Any, ...]] = {"gated": (rows, rows, rows, block), "scaled": (rows, rows[0, :1], block)}
    kernel = {"gated": gated, "scaled": scaled}[name]
    code = compile_like(kernel, args[name], {"B": block, "num_warps": warps}, "sm_90a").code
    found = assemble(code.ptx, "sm_90a").kernels[name]
    assert found.registers <= most and found.spilled == 0


@triton.jit
def normal(x, w, shift, out, N: tl.constexpr, B: tl.constexpr) -> None:
    columns = tl.arange(0, B)
    weight = tl.load(w + columns, mask=columns < N, other=0.0).to(tl.float32)
    bias = tl.load(shift + columns, mask=columns < N, other=0.0).to(tl.float32)
    row = tl.load(x + tl.program_id(0) * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    centred = row - tl.sum(row, axis=0) / N
    spread = tl.where(columns < N, centred, 0.0)
    scale = tl.rsqrt(tl.sum(spread * spread, axis=0) / N + 1e-5)
    tl.store(out + tl.program_id(0) * N + columns, centred * scale * weight + bias, mask=columns < N)


@needs_ptxas
def test_five_blocks_with_short_rows_lie_beside_each_other() -> None:
    """A thread holds sixteen elements: 48 registers of 256 threads are a fifth of a multiprocessor's."""
    rows = np.zeros((2, 4096), ml_dtypes.bfloat16)
    code = compile_like(normal, (rows, rows[0], rows[0], rows, 4096), {"B": 4096, "num_warps": 8}, "sm_90a").code
    found = assemble(code.ptx, "sm_90a").kernels["normal"]
    assert found.registers <= 48 and found.spilled == 0
