"""Weights of few bits are read as codes where these and their factors lie in memory as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import DType, Tensor, bf16, f16, f32, u8
from weft.lower.machine import gpu_machine
from weft.ops.matmul.quantized import dequantized
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

N, K, GROUP = 32, 256, 64


@pytest.mark.parametrize(("given", "reads_codes"), [(bf16, True), (f32, False), (f16, False)], ids=str)
def test_factors_that_are_computed_are_not_read_as_codes(given: DType, reads_codes: bool) -> None:
    def body(b: Any, x: Any, codes: Any, factors: Any) -> Any:
        factors = factors if given == bf16 else b.cast(factors, dtype=bf16)
        return b.dot(x, b.permute(b.dequantize(codes, factors, form="int4", dtype=bf16), dims=(1, 0)))

    tensors = [Tensor(bf16, (4, K)), Tensor(u8, (N, K // 2)), Tensor(given, (N, K // GROUP))]
    trial = Trial.of(group_of(tensors, body), "product", gpu_machine())
    found = any(isinstance(op, tile.DequantizeOp) for call in trial.lowered.calls for op in call.kernel.op.walk())
    assert found == reads_codes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, K)).astype(bf16.numpy)
    codes = rng.integers(0, 256, (N, K // 2)).astype(np.uint8)
    factors = rng.choice([0.25, 0.5, 1.0], (N, K // GROUP)).astype(given.numpy)
    weights = dequantized(codes, factors.astype(np.float32), None, "int4", GROUP).astype(np.float64)
    expected = x.astype(np.float64) @ weights.T
    (actual,) = run_interpreted(trial, [x, codes, factors])
    assert np.linalg.norm(actual.astype(np.float64) - expected) < 2**-7 * np.linalg.norm(expected)
