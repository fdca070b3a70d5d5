"""Lines that are cut where masks change: joined, padded and sliced tensors without anything to choose at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import host_target
from weft.backends.llvm.builder import Module
from weft.ir.types import Tensor, dtype_of_numpy
from weft.ops.windows.pool import MaxPool
from weft.testing.kernels import CpuModule, Trial, group_of

RNG = np.random.default_rng(9)


def rows(*widths: int) -> list[np.ndarray]:
    return [RNG.standard_normal((3, width)).astype(np.float32) for width in widths]


def trial_of(arrays: Sequence[np.ndarray], body: Callable[..., Any]) -> Trial:
    return Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "k")


@pytest.mark.parametrize("widths", [(32, 32), (5, 59), (40, 3), (1, 1), (16, 7, 41), (8, 8, 8, 8, 8)])
def test_joined_rows(widths: tuple[int, ...]) -> None:
    arrays = rows(*widths)
    trial = trial_of(arrays, lambda b, *xs: b.exp(b.concat(*xs, dim=1)))
    (y,) = CpuModule([trial]).run(trial, arrays)
    np.testing.assert_allclose(y, np.exp(np.concatenate(arrays, 1)), rtol=1e-6)


@pytest.mark.parametrize("widths", [(64, 64), (33, 70)])
def test_sums_over_joined_rows(widths: tuple[int, ...]) -> None:
    arrays = rows(*widths)
    trial = trial_of(arrays, lambda b, *xs: b.sum(b.concat(*xs, dim=1), dims=(1,), keep=True))
    (y,) = CpuModule([trial]).run(trial, arrays)
    np.testing.assert_allclose(y, np.concatenate(arrays, 1).sum(1, keepdims=True, dtype=np.float64), rtol=1e-5)


def test_halves_that_change_places_are_read_as_vectors() -> None:
    (x,) = rows(64)

    def turned(b: Any, x: Any) -> Any:
        one, other = (b.slice(x, starts=(0, start), shape=(3, 32), steps=(1, 1)) for start in (0, 32))
        return b.add(x, b.concat(b.neg(other), one, dim=1))

    trial = trial_of([x], turned)
    module = Module(host_target().triple)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, host_target())
    assert "select" not in str(module) and "load float" not in str(module)
    (y,) = CpuModule([trial]).run(trial, [x])
    np.testing.assert_array_equal(y, x + np.concatenate([-x[:, 32:], x[:, :32]], 1))


@pytest.mark.parametrize("side", [3, 5, 7])
def test_windows_beside_the_edge_are_known_along_their_rows(side: int) -> None:
    """Rows of an image are inside or outside as they come; which columns are is known, and none is looked up alone."""
    (x,) = rows(40)
    params: dict[str, Any] = {"window": (side, side), "strides": (1, 1), "padding": ((side // 2, side // 2),) * 2}
    images = np.stack([x, x[::-1], 2 * x])[None]
    trial = trial_of([images], lambda b, x: b.max_pool(x, **params, dilation=(1, 1)))
    kernel = trial.lowered.calls[0].kernel
    module = Module(host_target().triple)
    emit_kernel(module, kernel.op, host_target())
    assert str(kernel.schedule).startswith("#taps") and "weft.gather" not in str(module)
    (y,) = CpuModule([trial]).run(trial, [images])
    np.testing.assert_array_equal(y, MaxPool.reference(images, **params, dilation=(1, 1)))
