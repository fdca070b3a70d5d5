"""Scatters as tile kernels, on the interpreter and as machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import LoweringError
from weft.ir.expr import evaluate, symbol
from weft.ir.types import Tensor, bf16, boolean, f32, i64
from weft.testing.kernels import CpuModule, Symbols, Trial, group_of, run_interpreted

RNG = np.random.default_rng(4)


def both(trial: Trial, arrays: Sequence[np.ndarray], symbols: Symbols | None = None) -> list[list[np.ndarray]]:
    """The results of the interpreter and of machine code."""
    return [run_interpreted(trial, arrays, symbols), CpuModule([trial]).run(trial, arrays, symbols)]


def trial_of(tensors: Sequence[Tensor], body: Callable[..., Any]) -> Trial:
    return Trial.of(group_of(tensors, body), "scatter")


def embedding_gradient(b: Any, index: Any, grad: Any) -> Any:
    rows, columns = 11, b.tensor(grad).shape[1]
    start = b.full(value=0.0, shape=(rows, columns), dtype=b.tensor(grad).dtype)
    return b.index_put(start, index, grad, dims=(0,), position=0, accumulate=True)


@pytest.mark.parametrize("columns", [1, 7, 64, 128, 200, 4097])
def test_the_gradient_of_an_embedding_is_parallel_over_columns_or_parts_of_the_table(columns: int) -> None:
    tensors = [Tensor(i64, (symbol("n"),)), Tensor(f32, (symbol("n"), columns))]
    trial = trial_of(tensors, embedding_gradient)
    update = trial.lowered.calls[-1].kernel.op
    assert evaluate(update.grid.data[-1], {}) == {1: 1, 7: 1, 64: 1, 128: 8, 200: 8, 4097: 65}[columns]
    index, grad = RNG.integers(-11, 11, 50), RNG.standard_normal((50, columns)).astype(np.float32)
    expected = np.zeros((11, columns))
    np.add.at(expected, index, grad)
    for (y,) in both(trial, [index, grad], {"n": 50}):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_place_for_every_element_is_read_by_one_program_alone() -> None:
    tensors = [Tensor(f32, (9, 200)), Tensor(i64, (50, 200)), Tensor(f32, (50, 200))]
    trial = trial_of(tensors, lambda b, x, i, u: b.scatter(x, i, u, dim=0, kind="add"))
    assert evaluate(trial.lowered.calls[-1].kernel.op.grid.data[-1], {}) == 4, "programs split columns, not the result"
    x, updates = (RNG.standard_normal((rows, 200)).astype(np.float32) for rows in (9, 50))
    index = RNG.integers(-9, 9, (50, 200))
    expected = x.astype(np.float64)
    np.add.at(expected, (index, np.arange(200)), updates)
    for (y,) in both(trial, [x, index, updates]):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_narrow_sums_are_rounded_once() -> None:
    index, grad = np.zeros(300, np.int64), np.full((300, 4), 0.1, ml_dtypes.bfloat16)
    trial = trial_of([Tensor(i64, (300,)), Tensor(bf16, (300, 4))], embedding_gradient)
    exact = np.sum(grad.astype(np.float64), 0)
    for (y,) in both(trial, [index, grad]):
        np.testing.assert_array_equal(y[0], exact.astype(ml_dtypes.bfloat16))


def test_of_several_assignments_the_last_stays() -> None:
    index = RNG.integers(0, 5, (40, 70))
    x, updates = np.zeros((5, 70), np.float32), RNG.standard_normal((40, 70)).astype(np.float32)
    trial = trial_of(
        [Tensor(f32, (5, 70)), Tensor(i64, (40, 70)), Tensor(f32, (40, 70))],
        lambda b, x, i, u: b.scatter(x, i, u, dim=0, kind="assign"),
    )
    expected = x.copy()
    for row in range(40):
        expected[index[row], np.arange(70)] = updates[row]
    for (y,) in both(trial, [x, index, updates]):
        np.testing.assert_array_equal(y, expected)


def test_targets_outside_write_nothing_outside() -> None:
    trial = trial_of(
        [Tensor(f32, (symbol("v"), 2)), Tensor(i64, (3, 2)), Tensor(f32, (3, 2))],
        lambda b, x, i, u: b.scatter(x, i, u, dim=0, kind="add"),
    )
    far = np.array([[10**12, -(10**12)], [99, -99], [0, 0]])
    for size in (0, 1, 4):
        x = np.zeros((size, 2), np.float32)
        for (y,) in both(trial, [x, far, np.ones((3, 2), np.float32)], {"v": size}):
            assert y.sum() == (0 if size == 0 else 6)


@pytest.mark.parametrize(("kind", "expected"), [("add", [True, True]), ("mul", [False, False]), ("max", [True, True])])
def test_booleans_combine(kind: str, expected: list[bool]) -> None:
    trial = trial_of(
        [Tensor(boolean, (2,)), Tensor(i64, (3,)), Tensor(boolean, (3,))],
        lambda b, x, i, u: b.scatter(x, i, u, dim=0, kind=kind),
    )
    arrays = [np.array([True, False]), np.array([0, 1, 0]), np.array([False, True, True])]
    for (y,) in both(trial, arrays):
        np.testing.assert_array_equal(y, expected)


def test_updates_are_computed_on_the_way() -> None:
    def body(b: Any, x: Any, i: Any, u: Any) -> Any:
        return b.index_put(b.neg(x), i, b.exp(b.permute(u, dims=(1, 0))), dims=(1,), position=1, accumulate=True)

    x, u = RNG.standard_normal((3, 9)).astype(np.float32), RNG.standard_normal((6, 3)).astype(np.float32)
    index = RNG.integers(0, 9, 6)
    expected = -x.astype(np.float64)
    np.add.at(expected, (slice(None), index), np.exp(u.T.astype(np.float64)))
    for (y,) in both(trial_of([Tensor(f32, (3, 9)), Tensor(i64, (6,)), Tensor(f32, (6, 3))], body), [x, index, u]):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_ops_after_the_scatter_are_refused() -> None:
    with pytest.raises(LoweringError, match="nothing can be computed after"):
        trial_of(
            [Tensor(f32, (2,)), Tensor(i64, (3,)), Tensor(f32, (3,))],
            lambda b, x, i, u: b.exp(b.scatter(x, i, u, dim=0, kind="add")),
        )
