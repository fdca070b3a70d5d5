"""Reads and writes at computed places: which of them become vectors, and that all of them are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import host_target
from weft.backends.llvm.builder import Module
from weft.ir.expr import symbol
from weft.ir.types import Tensor, dtype_of_numpy, f32, i64
from weft.testing.kernels import CpuModule, Trial, group_of

RNG = np.random.default_rng(6)


def code(trial: Trial) -> str:
    module = Module(host_target().triple)
    for call in trial.lowered.calls:
        emit_kernel(module, call.kernel.op, host_target())
    return str(module)


def lowered(arrays: Sequence[np.ndarray], body: Callable[..., Any]) -> Trial:
    return Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "k")


def test_rows_of_an_embedding_are_read_as_vectors() -> None:
    x, index = RNG.standard_normal((30, 70)).astype(np.float32), RNG.integers(-30, 30, 9)
    trial = lowered([x, index], lambda b, x, i: b.take(x, i, dim=0))
    assert f"load <{host_target().lanes} x float>" in code(trial)
    (y,) = CpuModule([trial]).run(trial, [x, index])
    np.testing.assert_array_equal(y, x[index])


def test_rows_of_a_gradient_are_written_as_vectors() -> None:
    tensors = [Tensor(f32, (30, 70)), Tensor(i64, (symbol("n"),)), Tensor(f32, (symbol("n"), 70))]
    trial = Trial.of(
        group_of(tensors, lambda b, x, i, u: b.index_put(x, i, u, dims=(0,), position=0, accumulate=True)), "k"
    )
    assert f"store <{host_target().lanes} x float>" in code(trial)


@pytest.mark.parametrize("width", [5, 16, 37, 130])
@pytest.mark.parametrize("low", [0, 1, 20])
def test_padded_rows_are_right_at_both_ends(width: int, low: int) -> None:
    x = RNG.standard_normal((3, width)).astype(np.float32)
    trial = lowered([x], lambda b, x: b.pad(x, low=(1, low), high=(0, 18), value=-2.0))
    (y,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_array_equal(y, np.pad(x, ((1, 0), (low, 18)), constant_values=-2))


def test_a_mask_that_is_used_twice_is_computed_on_both_ways() -> None:
    # Nothing negative: where an exponential and a number cancel each other, no digits are left to compare.
    x, y = RNG.standard_normal((4, 40)).astype(np.float32), RNG.random((4, 29)).astype(np.float32)

    def body(b: Any, x: Any, y: Any) -> Any:
        joined = b.concat(x, y, dim=1)
        return b.add(b.exp(joined), b.pad(y, low=(0, 40), high=(0, 0), value=1.0))

    trial = lowered([x, y], body)
    (z,) = CpuModule([trial]).run(trial, [x, y])
    padded = np.pad(y, ((0, 0), (40, 0)), constant_values=1).astype(np.float64)
    np.testing.assert_allclose(z, np.exp(np.concatenate([x, y], 1).astype(np.float64)) + padded, rtol=1e-6)


@pytest.mark.parametrize("step", [-1, 2, -2, 3])
def test_elements_at_even_distances(step: int) -> None:
    x = RNG.standard_normal((3, 100)).astype(np.float32)
    expected = x[:, ::step]
    start = 0 if step > 0 else 99
    trial = lowered([x], lambda b, x: b.slice(x, starts=(0, start), shape=expected.shape, steps=(1, step)))
    (y,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("step", [-1, 2, 3])
def test_padded_elements_at_even_distances(step: int) -> None:
    x = RNG.standard_normal((3, 100)).astype(np.float32)
    wide = np.pad(x, ((0, 0), (7, 11)))[:, ::step]
    start = 0 if step > 0 else 117

    def body(b: Any, x: Any) -> Any:
        padded = b.pad(x, low=(0, 7), high=(0, 11), value=0.0)
        return b.exp(b.slice(padded, starts=(0, start), shape=wide.shape, steps=(1, step)))

    trial = lowered([x], body)
    (y,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_allclose(y, np.exp(wide.astype(np.float64)), rtol=1e-6)
