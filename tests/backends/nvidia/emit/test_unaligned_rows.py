"""Rows that begin anywhere are moved 16 bytes at a time, and nothing beside them is written."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from weft.backends.nvidia.pipeline import pipeline_rows
from weft.tile import dialect as tile

from ..ptx_machine import Memory
from ..ptx_streams import run_streams
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import row_code, row_kernel, run_rows

BF16 = ml_dtypes.bfloat16


def run(kernel: tile.KernelOp, *arrays: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return run_rows(kernel, row_code(kernel, "sm_80"), *arrays, shape=shape)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32).astype(BF16)


def below(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(-1, keepdim=True)


@pytest.mark.parametrize("columns", [257, 259, 261, 301, 519, 1023, 2049])
def test_rows_of_odd_lengths(columns: int) -> None:
    x = numbers(9, columns)
    kernel = row_kernel(below, x.shape)
    assert "st.global.v4" in row_code(kernel, "sm_80").ptx
    wide = x.astype(np.float32)
    assert np.array_equal(run(kernel, x, shape=x.shape), (wide - wide.max(1, keepdims=True)).astype(BF16))


@pytest.mark.parametrize("first", range(1, 9))
def test_parts_of_rows(first: int) -> None:
    x = numbers(5, 600)
    kernel = row_kernel(lambda x: below(x[:, first : first + 301]), x.shape)
    assert "ld.global.v4" in row_code(kernel, "sm_80").ptx
    wide = x[:, first : first + 301].astype(np.float32)
    assert np.array_equal(run(kernel, x, shape=(5, 301)), (wide - wide.max(1, keepdims=True)).astype(BF16))


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w)


@pytest.mark.parametrize("columns", [767, 1025])
def test_what_lies_beside_a_row_counts_for_nothing(columns: int) -> None:
    x, w = numbers(6, columns), numbers(columns)
    found = run(row_kernel(norm, x.shape, w.shape), x, w, shape=x.shape).astype(np.float64)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True)
    expected = centered / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w.astype(np.float64)
    assert np.abs(found - expected).max() < 0.03


@pytest.mark.parametrize("columns", [2047, 2049, 2051])
@pytest.mark.parametrize("seed", [0, 1])
def test_long_rows_are_brought_with_what_lies_beside_them(
    columns: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_LEAST_ELEMENTS", 1024), ("_LEAST_BYTES", 1024), ("_LEAST_TURNS", 0)):
        monkeypatch.setattr(pipeline_rows, name, value)
    monkeypatch.setattr(pipeline_rows, "_choices", lambda *_: iter([(2, 1)]))
    x = numbers(9, columns)
    kernel = row_kernel(below, x.shape)
    name, code = kernel.sym_name.data, row_code(kernel, "sm_90a")
    assert code.launches[name].persistent and code.launches[name].threads == 96
    memory, result = Memory(), np.full(x.shape, 777, BF16)
    words = [memory.add(array.view(np.uint16)) for array in (x, result)]
    run_streams(code.ptx, name, 96, code.launches[name].shared, memory, words, 2, seed)
    wide = x.astype(np.float32)
    found = memory.read(words[-1], result.view(np.uint16)).view(BF16)
    assert np.array_equal(found, (wide - wide.max(1, keepdims=True)).astype(BF16))


@pytest.mark.parametrize("columns", [2, 65, 255])
def test_short_rows_are_moved_element_by_element(columns: int) -> None:
    x = numbers(40, columns)
    kernel = row_kernel(below, x.shape)
    assert "shfl.sync.up" not in row_code(kernel, "sm_80").ptx
    wide = x.astype(np.float32)
    assert np.array_equal(run(kernel, x, shape=x.shape), (wide - wide.max(1, keepdims=True)).astype(BF16))


@needs_ptxas
@pytest.mark.parametrize("function", [lambda x: torch.softmax(x, -1), lambda x: x * x.sum(-1, keepdim=True)])
@pytest.mark.parametrize(("columns", "arch"), [(1001, "sm_80"), (1001, "sm_90a"), (50257, "sm_90a")])
def test_code_is_assembled_without_spills(function: Callable[..., torch.Tensor], columns: int, arch: str) -> None:
    kernel = row_kernel(function, (4096, columns))
    (used,) = assemble(row_code(kernel, arch).ptx, arch).kernels.values()
    assert not used.spilled
