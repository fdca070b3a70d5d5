"""Sums of rows in an order as tile kernels, on the interpreter and as machine code."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import DType, Tensor, f32, f64, i16, i32, i64
from weft.lower.indexing.sum_segments import STRETCH
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("results", [1, 9, 300])
@pytest.mark.parametrize(("rows", "columns"), [(7, 3), (STRETCH, 8), (3 * STRETCH + 5, 20)])
@pytest.mark.parametrize(("dtype", "key"), [(f32, i64), (f64, i32), (f32, i16)])
def test_each_result_adds_up_its_rows(results: int, rows: int, columns: int, dtype: DType, key: DType) -> None:
    tensors = [Tensor(dtype, (rows, columns)), Tensor(i64, (rows,)), Tensor(key, (rows,)), Tensor(i64, (results + 1,))]
    trial = Trial.of(group_of(tensors, lambda b, *given: b.sum_segments(*given)), "sums")
    # Half of all rows are one result's, and some are nobody's.
    keys = np.sort(np.where(RNG.random(rows) < 0.5, results // 2, RNG.integers(-1, results + 1, rows)))
    order = RNG.permutation(rows)
    x = RNG.standard_normal((rows, columns)).astype(dtype.numpy)
    starts = np.searchsorted(keys, np.arange(results + 1))
    exact = np.zeros((results, columns))
    there = (keys >= 0) & (keys < results)
    np.add.at(exact, keys[there], x[order[there]].astype(np.float64))
    arrays = [x, order, keys.astype(key.numpy), starts]
    for (found,) in run_interpreted(trial, arrays), CpuModule([trial]).run(trial, arrays):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
