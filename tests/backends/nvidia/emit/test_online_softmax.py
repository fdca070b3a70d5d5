"""A row's maximum and the sum of its exponentials are exchanged at once, and say what two reductions would."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from weft.backends.nvidia.ir.fused_reductions import OnlineSoftmaxOp
from weft.backends.nvidia.target import target_named
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..row_kernels import row_code, row_kernel, run_rows

TARGET = target_named("sm_90a")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def rows(columns: int) -> np.ndarray:
    x = (np.random.default_rng(3).standard_normal((6, columns)) * 4).astype(ml_dtypes.bfloat16)
    x[1], x[2, 5], x[3, ::2], x[4, 7] = -np.inf, np.inf, -np.inf, np.nan
    return x


def test_softmax_exchanges_once() -> None:
    kernel, _ = annotate(row_kernel(softmax, (4096, 4096)), TARGET)
    assert sum(isinstance(op, OnlineSoftmaxOp) for op in kernel.walk()) == 1
    assert not any(isinstance(op, tile.ReduceOp) for op in kernel.walk())


def test_what_else_needs_the_difference_keeps_it() -> None:
    kernel, _ = annotate(row_kernel(log_softmax, (4096, 4096)), TARGET)
    assert not any(isinstance(op, OnlineSoftmaxOp) for op in kernel.walk())


@pytest.mark.parametrize("columns", [515, 1000, 2049])
def test_code_for_rows_with_infinities_and_nan(columns: int) -> None:
    x = rows(columns)
    kernel = row_kernel(softmax, x.shape)
    code = row_code(kernel, TARGET.arch)
    found = run_rows(kernel, code, x, shape=x.shape).astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        powers = np.exp(wide - wide.max(1, keepdims=True))
        expected = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-9)


def shifted_softmax(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Of f32 numbers that are large and near each other."""
    return torch.softmax(x.float() + shift.float(), -1).to(x.dtype)


@pytest.mark.parametrize("columns", [515, 1000, 6000])
def test_rows_of_large_numbers(columns: int) -> None:
    """A thread that sees nothing but the lowest number, or numbers far from zero, adds neither inf nor NaN to a sum."""
    lowest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    x = (np.random.default_rng(3).standard_normal((8, columns)) * 4).astype(ml_dtypes.bfloat16)
    shift = np.zeros(x.shape, ml_dtypes.bfloat16)
    shift[0], shift[1, 20:], shift[2, ::3] = lowest, lowest, lowest
    shift[3], shift[4], shift[5] = 2.0**14, -(2.0**20), 2.0**26
    shift[6, : columns // 2], shift[7] = 2.0**33, np.where(np.arange(columns) % 2, 2.0**31, -(2.0**40))
    kernel = row_kernel(shifted_softmax, x.shape, x.shape)
    found = run_rows(kernel, row_code(kernel, TARGET.arch), x, shift, shape=x.shape).astype(np.float64)
    logits = (x.astype(np.float32) + shift.astype(np.float32)).astype(np.float64)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=2**-7, atol=1e-9)
