"""Scans as tile kernels, on the interpreter and as machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import LoweringError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64
from weft.testing.kernels import CpuModule, Symbols, Trial, group_of, run_interpreted

RNG = np.random.default_rng(3)


def both(
    tensors: Sequence[Tensor], body: Callable[..., Any], arrays: Sequence[np.ndarray], symbols: Symbols | None = None
) -> list[list[np.ndarray]]:
    """The results of the interpreter and of machine code."""
    trial = Trial.of(group_of(tensors, body), "scan")
    return [run_interpreted(trial, arrays, symbols), CpuModule([trial]).run(trial, arrays, symbols)]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_lines_side_by_side_have_an_edge(dim: int) -> None:
    sizes = (3, 5, 70)
    x = RNG.standard_normal(sizes).astype(np.float32)
    shape = tuple(symbol(f"s{d}") for d in range(3))
    symbols = {f"s{d}": size for d, size in enumerate(sizes)}
    for (y,) in both([Tensor(f32, shape)], lambda b, x: b.cumsum(x, dim=dim), [x], symbols):
        np.testing.assert_allclose(y, np.cumsum(x, dim, dtype=np.float64), rtol=1e-6, atol=1e-6)


def test_long_sums_keep_their_digits() -> None:
    x = RNG.uniform(0, 1, 100_000).astype(np.float32)
    trial = Trial.of(group_of([Tensor(f32, x.shape)], lambda b, x: b.cumsum(x, dim=0)), "scan")
    (y,) = CpuModule([trial]).run(trial, [x])
    exact = np.cumsum(x, dtype=np.float64)
    assert np.abs(y - exact).max() <= np.finfo(np.float32).eps * exact.max()


def test_ops_before_and_after_the_scan_join_its_kernel() -> None:
    x = RNG.standard_normal((4, 9)).astype(np.float32)

    def body(b: Any, x: Any) -> Any:
        y = b.cumsum(b.exp(b.permute(x, dims=(1, 0))), dim=0)
        return b.log(y), y

    for log, total in both([Tensor(f32, x.shape)], body, [x]):
        expected = np.cumsum(np.exp(x.T.astype(np.float64)), 0)
        np.testing.assert_allclose(total, expected, rtol=1e-6)
        np.testing.assert_allclose(log, np.log(expected), rtol=1e-6, atol=1e-6)


def test_a_flipped_scan_walks_backwards() -> None:
    x = RNG.standard_normal((3, 7)).astype(np.float32)

    def body(b: Any, x: Any) -> Any:
        return b.cumsum(b.slice(x, starts=(0, 6), shape=(3, 7), steps=(1, -1)), dim=1)

    for (y,) in both([Tensor(f32, x.shape)], body, [x]):
        np.testing.assert_allclose(y, np.cumsum(x[:, ::-1], 1, dtype=np.float64), rtol=1e-6, atol=1e-6)


def test_one_result_of_two_is_enough() -> None:
    x = np.array([[1.0, np.nan, 3.0, np.nan, 9.0], [2.0, 2.0, 1.0, -np.inf, 2.0]])
    for (places,) in both([Tensor(f64, x.shape)], lambda b, x: b.cummax(x, dim=1)[1], [x]):
        np.testing.assert_array_equal(places, [[0, 1, 1, 3, 3], [0, 1, 1, 1, 4]])
    for (values,) in both([Tensor(f64, x.shape)], lambda b, x: b.cummin(x, dim=1)[0], [x]):
        np.testing.assert_array_equal(values, [[1, np.nan, np.nan, np.nan, np.nan], [2, 2, 1, -np.inf, -np.inf]])


@pytest.mark.parametrize(
    "line", [[-np.inf, -np.inf, 1, 2], [1, np.inf, 3, -np.inf], [0, np.nan, 1, 2], [1000, 1001, -1000, 999], []]
)
def test_logarithms_of_sums_of_what_is_infinite(line: list[float]) -> None:
    x = np.array(line, np.float32)
    for (y,) in both([Tensor(f32, x.shape)], lambda b, x: b.logcumsumexp(x, dim=0), [x]):
        with np.errstate(invalid="ignore"):
            expected = np.logaddexp.accumulate(x.astype(np.float64))
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(LoweringError, match="does not have the elements"):
        Trial.of(group_of([Tensor(f32, (3, 4))], lambda b, x: b.sum(b.cumsum(x, dim=1), dims=(1,), keep=False)), "scan")
