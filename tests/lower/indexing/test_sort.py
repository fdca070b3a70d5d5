"""Sorts and top-k as tile kernels, on the interpreter and as machine code."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import LoweringError
from weft.ir.expr import symbol
from weft.ir.types import DType, Tensor, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from weft.ops.indexing.sort import sorted_places
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

DTYPES = (f32, f64, f16, bf16, i32, i64, i8, u8, boolean)
ROWS, COUNTS = 3, (0, 1, 2, 11, 12, 13, 100, 159, 160, 500, 1500)


@cache
def row_sorts() -> tuple[dict[tuple[DType, bool], Trial], CpuModule]:
    """Sorts of lines of any length, in every type and both ways."""

    def trial(dtype: DType, descending: bool) -> Trial:
        group = group_of(
            [Tensor(dtype, (symbol("m"), symbol("n")))],
            lambda b, x: b.sort(x, dim=1, descending=descending, stable=True),
        )
        return Trial.of(group, f"sort_{dtype.name}_{descending}")

    trials = {(dtype, down): trial(dtype, down) for dtype in DTYPES for down in (False, True)}
    return trials, CpuModule(list(trials.values()))


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Numbers with many ties; for floats also NaN, infinities and both zeros."""
    if dtype == boolean:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low, high = (0, 256) if dtype == u8 else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1))
        wide = rng.integers(low, high, shape, dtype=np.int64)
        return np.where(rng.random(shape) < 0.5, wide, rng.integers(0, 9, shape)).astype(dtype.numpy)
    special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e-8], shape)
    ordinary = rng.standard_normal(shape) * rng.choice([1e-4, 1.0, 1e4], shape)
    return np.where(rng.random(shape) < 0.7, ordinary, special).astype(dtype.numpy)


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lines_of_any_length_are_sorted_and_stable(dtype: DType, descending: bool) -> None:
    trials, module = row_sorts()
    trial, rng = trials[dtype, descending], np.random.default_rng(8)
    for count in COUNTS:
        x = drawn(rng, (ROWS, count), dtype)
        places = sorted_places(x, 1, descending)
        expected = np.take_along_axis(x, places, 1)
        symbols = {"m": ROWS, "n": count}
        for values, positions in (module.run(trial, [x], symbols), run_interpreted(trial, [x], symbols)):
            np.testing.assert_array_equal(positions, places)
            same_bits(values, expected)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i64], ids=str)
def test_the_first_of_many_are_selected(dtype: DType, largest: bool) -> None:
    rng = np.random.default_rng(9)
    cases = [(2, 900, k) for k in (0, 1, 7, 100)] + [(2, 900, 500), (3, 17, 17), (4, 64, 2)]
    trials = [
        Trial.of(
            group_of([Tensor(dtype, (m, n))], lambda b, x, k=k: b.topk(x, k=k, dim=1, largest=largest, sorted=True)),
            f"topk_{m}_{n}_{k}",
        )
        for m, n, k in cases
    ]
    module = CpuModule(trials)
    for (m, n, k), trial in zip(cases, trials, strict=True):
        x = drawn(rng, (m, n), dtype)
        places = sorted_places(x, 1, largest)[:, :k]
        for values, positions in (module.run(trial, [x]), run_interpreted(trial, [x])):
            np.testing.assert_array_equal(positions, places)
            same_bits(values, np.take_along_axis(x, places, 1))


def test_a_sort_along_another_dimension_of_what_is_computed() -> None:
    x = np.random.default_rng(1).standard_normal((5, 40, 3)).astype(np.float32)

    def body(b: Any, x: Any) -> Any:
        return b.sort(b.neg(b.permute(x, dims=(2, 1, 0))), dim=1, descending=False, stable=True)

    trial = Trial.of(group_of([Tensor(f32, x.shape)], body), "sort")
    places = sorted_places(-x.T, 1, False)
    for values, positions in (run_interpreted(trial, [x]), CpuModule([trial]).run(trial, [x])):
        np.testing.assert_array_equal(positions, places)
        np.testing.assert_array_equal(values, np.take_along_axis(-x.T, places, 1))


@pytest.mark.parametrize("result", [0, 1])
def test_one_result_of_two_is_enough(result: int) -> None:
    x = np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32)
    group = group_of([Tensor(f32, x.shape)], lambda b, x: b.sort(x, dim=1, descending=True, stable=True)[result])
    trial = Trial.of(group, "sort")
    assert len(trial.lowered.calls) == 2, "what is sorted in the output is not copied"
    places = sorted_places(x, 1, True)
    expected = (np.take_along_axis(x, places, 1), places)[result]
    for (found,) in (run_interpreted(trial, [x]), CpuModule([trial]).run(trial, [x])):
        np.testing.assert_array_equal(found, expected)


def test_ops_after_the_sort_are_refused() -> None:
    def body(b: Any, x: Any) -> Any:
        return b.neg(b.sort(x, dim=0, descending=False, stable=True)[0])

    with pytest.raises(LoweringError, match="nothing can be computed after"):
        Trial.of(group_of([Tensor(f32, (4,))], body), "sort")
