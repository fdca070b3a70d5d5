"""Products with matrices that are chosen when they run: interpreted, simulated, and as PTX with a copy engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, u8
from weft.lower.machine import gpu_machine
from weft.ops.quantized import dequantized
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated

from .test_streamed_weights import all_brought as all_brought
from .test_streamed_weights import run as run_streamed
from .test_tensor_cores import agree, run_as_ptx

EXPERTS = 5
CHOSEN = [2, 2, 0, 4, -1, 1]


def operands(n: int, k: int, form: str = "", scale: DType = bf16) -> list[np.ndarray]:
    rng = np.random.default_rng(n + k)
    x = rng.standard_normal((len(CHOSEN), 1, k)).astype(bf16.numpy)
    chosen = np.array(CHOSEN, np.int32)
    if not form:
        return [x, chosen, rng.standard_normal((EXPERTS, n, k)).astype(bf16.numpy)]
    codes = rng.integers(0, 256, (EXPERTS, n, k // 2)).astype(np.uint8)
    shape = EXPERTS, n, k // 32
    scales = rng.integers(118, 124, shape) if scale == u8 else rng.uniform(0.1, 1, shape)
    return [x, chosen, codes, scales.astype(scale.numpy)]


def trial_of(arrays: list[np.ndarray], form: str = "") -> Trial:
    def body(b: Any, x: Any, chosen: Any, *parts: Any) -> Any:
        weights = b.dequantize(*parts, form=form, dtype=bf16) if form else parts[0]
        return b.dot(x, b.permute(b.take(weights, chosen, dim=0), dims=(0, 2, 1)))

    tensors = [Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays]
    return Trial.of(group_of(tensors, body), "product", gpu_machine())


def expected(arrays: list[np.ndarray], form: str = "") -> np.ndarray:
    x, chosen, *parts = arrays
    weights = dequantized(parts[0], parts[1], None, form, 32).astype(bf16.numpy) if form else parts[0]
    return np.matmul(x.astype(np.float64), weights.astype(np.float64)[chosen].transpose(0, 2, 1))


CASES = [("", bf16), ("int4", bf16), ("e2m1", u8)]


@pytest.mark.parametrize(("form", "scale"), CASES)
@pytest.mark.parametrize(("n", "k"), [(20, 288), (33, 1024)])
def test_every_row_is_multiplied_with_its_matrix(n: int, k: int, form: str, scale: DType) -> None:
    arrays = operands(n, k, form, scale)
    trial, exact = trial_of(arrays, form), expected(arrays, form)
    agree(run_interpreted(trial, arrays)[0], exact)
    agree(run_simulated(trial, arrays)[0], exact)
    agree(run_as_ptx(trial, arrays, "sm_90a"), exact)


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize(("form", "scale"), CASES)
def test_the_copy_engine_brings_the_chosen(form: str, scale: DType) -> None:
    arrays = operands(24, 4096, form, scale)
    agree(run_streamed(trial_of(arrays, form), arrays, 2), expected(arrays, form))
