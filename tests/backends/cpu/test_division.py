"""Division of a row by one number, which goes through its reciprocal: as exact as division, special values included."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import host_target
from weft.backends.llvm.builder import Module
from weft.ir.types import Tensor, dtype_of_numpy
from weft.testing.kernels import CpuModule, Trial, group_of

RNG = np.random.default_rng(8)


def trial_of(x: np.ndarray, d: np.ndarray) -> Trial:
    tensors = [Tensor(dtype_of_numpy(a.dtype), a.shape) for a in (x, d)]
    return Trial.of(group_of(tensors, lambda b, x, d: b.div(x, d)), "k")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quotients_are_rounded_once(dtype: type[np.floating]) -> None:
    x = RNG.standard_normal((40, 500)).astype(dtype)
    d = (RNG.standard_normal((40, 1)) * 10.0 ** RNG.integers(-30, 30, (40, 1))).astype(dtype)
    x[:, 0] = d[:, 0]
    trial = trial_of(x, d)
    (y,) = CpuModule([trial]).run(trial, [x, d])
    expected = x / d
    np.testing.assert_array_max_ulp(y, expected, 1)
    assert np.mean(y != expected) < 1e-3
    np.testing.assert_array_equal(y[:, 0], 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype: type[np.floating]) -> None:
    limits = np.finfo(dtype)
    ends = [limits.max, limits.tiny, limits.smallest_subnormal, 8 * limits.smallest_subnormal, 1.0, 3.0]
    values = np.array([0.0, np.inf, np.nan, *ends], dtype)
    values = np.concatenate([values, -values])
    x, d = np.tile(values, (len(values), 4)), values[:, None].copy()
    trial = trial_of(x, d)
    (y,) = CpuModule([trial]).run(trial, [x, d])
    with np.errstate(all="ignore"):
        expected = x / d
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(y[there]), np.signbit(expected[there]))
    np.testing.assert_array_max_ulp(y[there], expected[there], 1)


def test_a_row_takes_one_division() -> None:
    trial = trial_of(np.ones((4, 500), np.float32), np.ones((4, 1), np.float32))
    module = Module(host_target().triple)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, host_target())
    vectors = [line for line in str(module).splitlines() if "fdiv" in line and " x float>" in line]
    assert not vectors or "fma" in host_target().lacks
