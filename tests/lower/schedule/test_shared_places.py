"""Tiles of kernels that look elements up at the same places for many lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import Tensor, f32, i64
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("rows", "columns", "taken"), [(40, 30, 700), (5, 30, 700), (40, 30, 9), (1, 30, 700)])
def test_places_are_computed_once_for_several_lines(rows: int, columns: int, taken: int) -> None:
    trial = Trial.of(
        group_of([Tensor(f32, (rows, columns)), Tensor(i64, (taken,))], lambda b, x, i: b.take(x, i, dim=1)), "take"
    )
    (call,) = trial.lowered.calls
    assert ("r0 by 16" in str(call.kernel.schedule)) == (rows == 40 and taken == 700)
    x, index = RNG.standard_normal((rows, columns)).astype(np.float32), RNG.integers(-columns, columns, taken)
    for (y,) in (run_interpreted(trial, [x, index]), CpuModule([trial]).run(trial, [x, index])):
        np.testing.assert_array_equal(y, x[:, index])


def test_masked_places_that_can_be_read_anyway_are_read() -> None:
    """Samples beyond the border are zero, wherever the nearest element inside lies."""

    def sampled(b: Any, x: Any, grid: Any) -> Any:
        return b.grid_sample(x, grid, mode="linear", padding="zeros", align_corners=False)

    tensors = [Tensor(f32, (2, 20, 7, 9)), Tensor(f32, (2, 5, 61, 2))]
    x = RNG.standard_normal(tensors[0].shape).astype(np.float32)
    grid = RNG.uniform(-1.6, 1.6, tensors[1].shape).astype(np.float32)
    grid[0, 0, 0] = np.nan
    trial = Trial.of(group_of(tensors, sampled), "sampled")
    (expected,), (got,) = run_interpreted(trial, [x, grid]), CpuModule([trial]).run(trial, [x, grid])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
