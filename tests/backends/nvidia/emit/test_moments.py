"""A row's sum and its squares from the mean are exchanged at once, and say what two reductions would."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from weft.backends.nvidia.ir.fused_reductions import MomentsOp
from weft.backends.nvidia.target import target_named
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..row_kernels import row_code, row_kernel, run_rows

TARGET = target_named("sm_90a")
BF16 = ml_dtypes.bfloat16


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],))


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True)).to(x.dtype)


def joined(kernel: tile.KernelOp) -> int:
    return sum(isinstance(op, MomentsOp) for op in annotate(kernel, TARGET)[0].walk())


@pytest.mark.parametrize(("columns", "count"), [(1024, 0), (4096, 1), (5000, 1), (32776, 1)])
def test_norms_of_long_rows_exchange_once(columns: int, count: int) -> None:
    assert joined(row_kernel(norm, (8192, columns))) == count


def test_other_sums_stay() -> None:
    assert not joined(row_kernel(root_mean_square, (8192, 4096)))
    assert not joined(row_kernel(lambda x: x - x.sum(-1, keepdim=True), (8192, 4096)))


@pytest.mark.parametrize("columns", [2048, 2049, 3000])
def test_code_keeps_digits_where_means_are_large(columns: int) -> None:
    x = np.random.default_rng(3).standard_normal((6, columns)).astype(np.float32)
    x[1] += 100
    x[2, 0] = 1e4
    x[3], x[4, 5], x[5, 7] = 2, np.nan, np.inf
    x = x.astype(BF16)
    kernel = row_kernel(norm, x.shape)
    found = run_rows(kernel, row_code(kernel, TARGET.arch), x, shape=x.shape).astype(np.float64)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = wide - wide.mean(1, keepdims=True)
        expected = apart / np.sqrt(np.square(apart).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-3)
