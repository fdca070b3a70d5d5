"""Kernels as machine code of other processors, run in programs of their own: emulated, or on this one's family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.microkernel import panel_form
from weft.backends.cpu.target import CpuTarget
from weft.ir.types import Tensor, contiguous_strides, dtype_of_numpy, f32, tensor_of
from weft.lower.dispatch import lower
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, packable
from weft.ops.layouts import StridedLayout
from weft.testing.emulated import EmulatedModule, missing_for
from weft.testing.kernels import Trial, group_of, run_interpreted

TARGETS = [
    CpuTarget("x86_64-unknown-linux-gnu", "haswell", ""),
    CpuTarget("x86_64-unknown-linux-gnu", "x86-64-v2", ""),
    CpuTarget("aarch64-unknown-linux-gnu", "neoverse-n1", ""),
]


def softmax(b: Any, x: Any) -> Any:
    exponentials = b.exp(b.sub(x, b.max(x, dims=(1,), keep=True)))
    return b.div(exponentials, b.sum(exponentials, dims=(1,), keep=True))


def layer_norm(b: Any, x: Any, weight: Any, bias: Any) -> Any:
    count = b.full(value=float(b.tensor(x).shape[1]), shape=(), dtype=f32)
    centred = b.sub(x, b.div(b.sum(x, dims=(1,), keep=True), count))
    variance = b.div(b.sum(b.mul(centred, centred), dims=(1,), keep=True), count)
    scaled = b.mul(centred, b.rsqrt(b.add(variance, b.full(value=1e-5, shape=(), dtype=f32))))
    return b.add(b.mul(scaled, weight), bias)


def linear(b: Any, x: Any, w: Any, c: Any) -> Any:
    return b.relu(b.add(b.dot(x, w), c))


def random(*shape: int) -> np.ndarray:
    return generator().standard_normal(shape).astype(np.float32)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[np.ndarray]]]] = {
    "exponential": (lambda b, x, y: b.mul(b.exp(x), b.tanh(y)), lambda: [random(33, 70), random(33, 70)]),
    "softmax": (softmax, lambda: [random(9, 1003)]),
    "layer_norm": (layer_norm, lambda: [random(7, 300), random(300), random(300)]),
    "sum_of_columns": (lambda b, x: b.sum(x, dims=(0,), keep=False), lambda: [random(120, 65)]),
    "gather": (
        lambda b, x, i: b.gather(x, i, dim=1),
        lambda: [random(6, 50), generator().integers(0, 50, (6, 20))],
    ),
    "dot": (lambda b, x, y: b.dot(x, y), lambda: [random(37, 70), random(70, 45)]),
    "dot_of_rows": (lambda b, x, y: b.dot(x, b.permute(y, dims=(1, 0))), lambda: [random(5, 131), random(40, 131)]),
    "narrow": (
        lambda b, x, y: b.add(b.mul(x, y), y),
        lambda: [random(3, 77).astype(ml_dtypes.bfloat16), random(3, 77).astype(ml_dtypes.bfloat16)],
    ),
    "half": (
        lambda b, x, y: b.dot(x, y),
        lambda: [random(20, 48).astype(np.float16), random(48, 33).astype(np.float16)],
    ),
}
PACKED_SHAPES = [(1, 100, 70), (13, 260, 64), (30, 700, 40)]


def trials_of(target: CpuTarget) -> tuple[list[str], list[tuple[Trial, Sequence[np.ndarray]]], list[np.ndarray]]:
    """The cases, and what their kernels mean."""
    names, cases, expected = [], [], []
    for name, (body, make) in CASES.items():
        arrays = make()
        trial = Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), name)
        names.append(name)
        cases.append((trial, arrays))
        expected.append(run_interpreted(trial, arrays)[0])
    columns, together = panel_form(target, f32, f32)
    for m, k, n in PACKED_SHAPES:
        arrays = [random(m, k), random(k, n), random(n)]
        product = group_of([Tensor(f32, array.shape) for array in arrays], linear)
        packing = packable(product, columns, together)
        assert packing is not None
        inputs = [tensor_of(value.type) for value in product.block.args]
        layouts: list[StridedLayout] = [StridedLayout(contiguous_strides(tensor.shape)) for tensor in inputs]
        layouts[1], inputs[1] = PackedLayout.of(packing.panels), Tensor(f32, packing.panels.shape)
        machine = Machine(product_rows=6 if target.is_x86 else 0)
        lowered = lower(product, f"packed_{m}", layouts, [StridedLayout((n, 1))], machine)
        names.append(f"packed_{m}")
        given = [arrays[0], packing.pack(arrays[1]), arrays[2]]
        cases.append((Trial(lowered, tuple(inputs), (Tensor(f32, (m, n)),)), given))
        expected.append(np.maximum(arrays[0].astype(np.float64) @ arrays[1] + arrays[2], 0))
    return names, cases, expected


@lru_cache
def ran(target: CpuTarget) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What the kernels computed on a processor and what they should have, by case: all run in one program."""
    names, cases, expected = trials_of(target)
    found = EmulatedModule([trial for trial, _ in cases], target).run(cases)
    return {name: (each[0], meant) for name, each, meant in zip(names, found, expected, strict=True)}


@pytest.mark.parametrize("name", [*CASES, *(f"packed_{m}" for m, _, _ in PACKED_SHAPES)])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_kernels_compute_on_other_processors_what_they_mean(target: CpuTarget, name: str) -> None:
    if (missing := missing_for(target)) is not None:
        pytest.skip(missing)
    found, meant = ran(target)[name]
    epsilon = float(ml_dtypes.finfo(found.dtype).eps)
    scale = float(np.abs(meant.astype(np.float64)).max())
    assert np.abs(found.astype(np.float64) - meant.astype(np.float64)).max() <= 8 * epsilon * scale
