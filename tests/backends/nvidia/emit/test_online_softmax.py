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
