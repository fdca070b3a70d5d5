"""Concatenations as one kernel for each piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted
from weft.tile import dialect as tile

RNG = np.random.default_rng(5)


def test_pieces_are_computed_and_written_in_place() -> None:
    a, c = RNG.standard_normal((4, 6)).astype(np.float32), RNG.standard_normal((4, 1)).astype(np.float32)

    def body(b: Any, a: Any, c: Any) -> Any:
        return b.concat(b.exp(a), b.sum(a, dims=(1,), keep=True), c, dim=1)

    trial = Trial.of(group_of([Tensor(f32, (4, symbol("n"))), Tensor(f32, (4, 1))], body), "joined")
    kernels = [call.kernel.op for call in trial.lowered.calls]
    assert len(kernels) == 3
    assert not any(isinstance(op, tile.GatherOp) for kernel in kernels for op in kernel.walk())
    wide = a.astype(np.float64)
    expected = np.concatenate([np.exp(wide), wide.sum(1, keepdims=True), c], 1)
    for (y,) in (run_interpreted(trial, [a, c], {"n": 6}), CpuModule([trial]).run(trial, [a, c], {"n": 6})):
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_what_follows_a_concatenation_is_computed_in_its_kernel() -> None:
    a, c = (RNG.standard_normal((3, n)).astype(np.float32) for n in (5, 20))
    trial = Trial.of(
        group_of([Tensor(f32, a.shape), Tensor(f32, c.shape)], lambda b, a, c: b.exp(b.concat(a, c, dim=1))), "joined"
    )
    assert len(trial.lowered.calls) == 1
    expected = np.exp(np.concatenate([a, c], 1).astype(np.float64))
    for (y,) in (run_interpreted(trial, [a, c]), CpuModule([trial]).run(trial, [a, c])):
        np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 10), (5, 7), (1, 64), (130, 48)])
def test_pieces_of_the_same_elements_have_a_kernel_together(shape: tuple[int, int]) -> None:
    """The gradients of the halves of a gated unit."""
    rows, half = shape

    def body(b: Any, x: Any, g: Any, c: Any) -> Any:
        gate, up = (b.slice(x, starts=(0, start), shape=shape, steps=(1, 1)) for start in (0, half))
        sigmoid = b.sigmoid(gate)
        return b.concat(b.mul(b.mul(g, up), sigmoid), c, b.mul(g, b.mul(gate, sigmoid)), dim=1)

    tensors = [Tensor(f32, (rows, 2 * half)), Tensor(f32, shape), Tensor(f32, (rows, 1))]
    trial = Trial.of(group_of(tensors, body), "joined")
    assert len(trial.lowered.calls) == 2
    arrays = [RNG.standard_normal(tensor.shape).astype(np.float32) for tensor in tensors]
    x, g, c = (array.astype(np.float64) for array in arrays)
    sigmoid = 1 / (1 + np.exp(-x[:, :half]))
    expected = np.concatenate([g * x[:, half:] * sigmoid, c, g * x[:, :half] * sigmoid], 1)
    for (y,) in (run_interpreted(trial, arrays), CpuModule([trial]).run(trial, arrays)):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_the_same_piece_twice_is_written_twice() -> None:
    a = RNG.standard_normal((4, 6)).astype(np.float32)

    def body(b: Any, a: Any) -> Any:
        twice = b.exp(a)
        return b.concat(twice, twice, b.neg(a), dim=0)

    trial = Trial.of(group_of([Tensor(f32, a.shape)], body), "joined")
    expected = np.concatenate([np.exp(a), np.exp(a), -a], 0)
    for (y,) in (run_interpreted(trial, [a]), CpuModule([trial]).run(trial, [a])):
        np.testing.assert_allclose(y, expected, rtol=1e-6)
