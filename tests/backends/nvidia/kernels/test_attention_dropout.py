"""Attention that drops weights, and its gradients: the tile kernels agree on which; what is made of them assembles."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, f16, f32, i64
from weft.lower.machine import CPU, Machine, gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted

from ..ptxas import assemble, needs_ptxas
from .test_wide_tangents import run_as_ptx

TARGET = target_named("sm_90a")
SEED = np.array([-7 * 2**40 + 11], np.int64)
SHAPES = [
    # groups, members, rows, keys, width, causal
    (2, 1, 200, 333, 64, True),
    (2, 2, 70, 75, 96, False),
    (1, 3, 131, 100, 128, True),
    (1, 2, 67, 73, 192, True),
    (1, 1, 40, 70, 256, False),
]


def forward(lead: tuple[int, ...], rows: int, keys: int, width: int, dtype: DType, machine: Machine, **params: object):  # type: ignore[no-untyped-def]
    tensors = [Tensor(dtype, (*lead, count, width)) for count in (rows, keys, keys)]
    given = [*tensors, Tensor(i64, (1,))]
    return Trial.of(group_of(given, lambda b, *x: b.attention_with_dropout(*x, **params)), "f", machine), given


def backward(lead: tuple[int, ...], rows: int, keys: int, width: int, dtype: DType, machine: Machine, **params: object):  # type: ignore[no-untyped-def]
    many, few = Tensor(dtype, (*lead, rows, width)), Tensor(dtype, (*lead[:-1], keys, width))
    numbers = Tensor(f32, (*lead, rows))
    given = [many, many, few, few, numbers, numbers, Tensor(i64, (1,))]
    return Trial.of(group_of(given, lambda b, *x: b.attention_gradients(*x, **params)), "g", machine), given


def error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("groups", "members", "rows", "keys", "width", "causal"), SHAPES)
@pytest.mark.parametrize("machine", [CPU, gpu_machine()], ids=["cpu", "gpu"])
def test_weights_are_dropped_by_their_places(
    groups: int, members: int, rows: int, keys: int, width: int, causal: bool, machine: Machine
) -> None:
    params = {"causal": causal, "scale": width**-0.5, "dropout": 0.3}
    rng = np.random.default_rng(7)
    q, grad = (rng.standard_normal((groups, members, rows, width)).astype(bf16.numpy) for _ in range(2))
    k, v = (rng.standard_normal((groups, keys, width)).astype(bf16.numpy) for _ in range(2))
    spread = [np.repeat(x[:, None], members, 1) for x in (k, v)]
    trial, _ = forward((groups, members), rows, keys, width, bf16, machine, **params)
    out, lse = run_interpreted(trial, [q, *spread, SEED])
    wide = [x.astype(np.float64) for x in (q, *spread)]
    exact, logarithms = REGISTRY["attention_with_dropout"].cls.reference(*wide, SEED, **params)
    assert error(out, exact) < 4e-3 and np.abs(lse - logarithms).max() < 1e-5

    means = (grad.astype(np.float64) * exact).sum(-1).astype(np.float32)
    trial, _ = backward((groups, members), rows, keys, width, bf16, machine, **params)
    found = run_interpreted(trial, [grad, q, k, v, lse, means, SEED])
    wide = [x.astype(np.float64) for x in (grad, q, k, v, lse, means)]
    wanted = REGISTRY["attention_gradients"].cls.reference(*wide, SEED, **params)
    assert max(map(error, found, wanted)) < 5e-3


@pytest.mark.parametrize(
    ("members", "rows", "keys", "width", "causal"), [(2, 70, 133, 64, True), (1, 133, 70, 128, False)]
)
def test_the_code_of_a_gpu_drops_the_same(members: int, rows: int, keys: int, width: int, causal: bool) -> None:
    params = {"causal": causal, "scale": width**-0.5, "dropout": 0.25}
    rng = np.random.default_rng(9)
    q, grad = (rng.standard_normal((2, members, rows, width)).astype(bf16.numpy) for _ in range(2))
    k, v = (rng.standard_normal((2, keys, width)).astype(bf16.numpy) for _ in range(2))
    spread = [np.repeat(x[:, None], members, 1) for x in (k, v)]
    trial, _ = forward((2, members), rows, keys, width, bf16, gpu_machine(), **params)
    out, lse = run_as_ptx(trial, [q, *spread, SEED])
    exact, _ = REGISTRY["attention_with_dropout"].cls.reference(
        *(x.astype(np.float64) for x in (q, *spread)), SEED, **params
    )
    assert error(out, exact) < 4e-3
    given = [grad, q, k, v, lse, (grad.astype(np.float64) * exact).sum(-1).astype(np.float32)]
    trial, _ = backward((2, members), rows, keys, width, bf16, gpu_machine(), **params)
    found = run_as_ptx(trial, [*given, SEED])
    wanted = REGISTRY["attention_gradients"].cls.reference(*(x.astype(np.float64) for x in given), SEED, **params)
    assert max(map(error, found, wanted)) < 5e-3


@needs_ptxas
@pytest.mark.parametrize("width", [64, 128, 192, 256])
@pytest.mark.parametrize(("causal", "dtype"), [(False, bf16), (True, f16)])
def test_what_drops_weights_assembles_without_spills(width: int, causal: bool, dtype: DType) -> None:
    params = {"causal": causal, "scale": width**-0.5, "dropout": 0.1}
    kernels = [
        call.kernel.op
        for made in (forward, backward)
        for call in made((4, 8, 2), 4000, 4096, width, dtype, gpu_machine(), **params)[0].lowered.calls
    ]
    for kernel in kernels:
        name = kernel.sym_name.data
        found = assemble(compile_kernels({name: kernel}, TARGET).ptx, TARGET.arch)
        assert not found.error and not found.advice
        assert found.kernels[name].spilled == 0
