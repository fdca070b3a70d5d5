"""Maxima and sums of exponentials below them are found in one pass over rows that are not held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.ir import SSAValue

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import Tensor, dtype_of_numpy, f32
from weft.lower.machine import Machine, gpu_machine
from weft.ops.graph import GraphBuilder
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated
from weft.tile import dialect as tile

SMALL = replace(gpu_machine(2, clusters=False), tile_elements=64, row_elements=128, lanes=8)
"""A GPU on which small tensors are large."""


def log_sum(b: GraphBuilder, x: SSAValue) -> SSAValue:
    largest = b.max(x, dims=(1,), keep=True)
    base = b.where(b.isinf(largest), b.full(value=0.0, shape=(), dtype=f32), largest)
    return b.add(b.log(b.sum(b.exp(b.sub(x, base)), dims=(1,), keep=True)), base)


def log_softmax(b: GraphBuilder, x: SSAValue) -> SSAValue:
    shifted = b.sub(x, b.max(x, dims=(1,), keep=True))
    return b.sub(shifted, b.log(b.sum(b.exp(shifted), dims=(1,), keep=True)))


def picked(b: GraphBuilder, x: SSAValue, labels: SSAValue) -> list[SSAValue]:
    """Cross-entropy, and another reduction that goes along."""
    loss = b.neg(b.gather(log_softmax(b, x), labels, dim=1))
    return [loss, b.sum(b.mul(x, x), dims=(1,), keep=False)]


def trial_of(body: object, *arrays: np.ndarray, machine: Machine = SMALL) -> Trial:
    tensors = [Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays]
    return Trial.of(group_of(tensors, body), "online", machine)  # type: ignore[arg-type]


def loops_of(trial: Trial) -> list[tile.ForOp]:
    return [op for call in trial.lowered.calls for op in call.kernel.op.block.ops if isinstance(op, tile.ForOp)]


def logits(rows: int = 6, columns: int = 2500) -> np.ndarray:
    return (np.random.default_rng(7).standard_normal((rows, columns)) * 5).astype(np.float32)


def exact_log_sum(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    top = wide.max(1, keepdims=True)
    base = np.where(np.isinf(top), 0, top)
    with np.errstate(all="ignore"):
        return np.log(np.exp(wide - base).sum(1, keepdims=True)) + base


@pytest.mark.parametrize("run", [run_interpreted, run_simulated])
def test_of_rows_with_infinities_and_nan(run: object) -> None:
    x = logits()
    x[1], x[2, 5], x[3, ::2], x[4, 7] = -np.inf, np.inf, -np.inf, np.nan
    trial = trial_of(log_sum, x)
    assert len(loops_of(trial)) == 1
    (found,) = run(trial, [x])  # type: ignore[operator]
    np.testing.assert_allclose(found, exact_log_sum(x), rtol=1e-5)


@pytest.mark.parametrize("run", [run_interpreted, run_simulated])
def test_cross_entropy_reads_rows_once(run: object) -> None:
    x, labels = logits(), np.random.default_rng(1).integers(0, 2500, (6, 1))
    trial = trial_of(picked, x, labels)
    assert len(loops_of(trial)) == 1
    loss, squares = run(trial, [x, labels])  # type: ignore[operator]
    np.testing.assert_allclose(loss, exact_log_sum(x) - np.take_along_axis(x, labels, 1), rtol=1e-5)
    np.testing.assert_allclose(squares, (x.astype(np.float64) ** 2).sum(1), rtol=1e-5)


def test_rows_that_are_written_are_read_twice() -> None:
    x = logits(columns=4096)
    trial = trial_of(log_softmax, x, machine=replace(SMALL, tile_elements=1024))
    assert len(loops_of(trial)) == 2
    (found,) = run_simulated(trial, [x])
    np.testing.assert_allclose(found, x - exact_log_sum(x), rtol=1e-5, atol=1e-5)
