"""The first extremum of a line, whose lanes are compared with one another at the end."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import DType, Tensor, f32, f64, i64
from weft.testing.kernels import CpuModule, Trial, group_of


def lines(dtype: DType, length: int) -> np.ndarray:
    rng = np.random.default_rng(length)
    x = rng.integers(-3, 4, (20, length)).astype(dtype.numpy)  # most extrema are there several times
    if dtype.is_float:
        x[0], x[1], x[2] = np.nan, -np.inf, np.inf
        x[3, length // 2] = x[4, -1] = x[5, 0] = x[6, length // 3 :] = np.nan
        x[7], x[7, length // 2] = 0, -0.0
    return x


@pytest.mark.parametrize("length", [1, 63, 64, 67, 131, 1000])
@pytest.mark.parametrize("dtype", [f32, f64, i64])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equals_is_found(name: str, dtype: DType, length: int) -> None:
    x = lines(dtype, length)
    trial = Trial.of(
        group_of([Tensor(dtype, (20, length))], lambda b, v: getattr(b, name)(v, dims=(1,), keep=False)), name
    )
    (got,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_array_equal(got, getattr(np, name)(x, axis=1))  # NumPy's is the first, too, and NaN beats all
