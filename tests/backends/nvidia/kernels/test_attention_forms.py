"""Attention with soft caps, sinks, rows that see no key, and masks of odd lengths, as a GPU's kernels do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, boolean, f16
from weft.lower.machine import gpu_machine
from weft.ops.matmul.attention import Attention
from weft.pipelines import compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
HEADS, WIDTH = 3, 64
PARAMS: dict[str, dict[str, Any]] = {
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "sinks under a cap": {"sinks": True, "softcap": 1.5},
    "rows without keys": {"undefined": True},
}


def trial(rows: int, keys: int, dtype: DType, params: dict[str, Any], others: list[Tensor]) -> Trial:
    shapes = [(2, HEADS, length, WIDTH) for length in (rows, keys, keys)]
    tensors = [*(Tensor(dtype, shape) for shape in shapes), *others]
    group = group_of(tensors, lambda b, *values: b.attention(*values, causal=False, scale=0.2, **params))
    return Trial.of(group, "attention", gpu_machine())


@pytest.mark.parametrize(("dtype", "masked"), [(bf16, True), (f16, False)])
@pytest.mark.parametrize(("rows", "keys"), [(130, 200), (1, 300), (5, 390)])
@pytest.mark.parametrize("form", PARAMS)
def test_the_tile_kernels_are_attention(form: str, rows: int, keys: int, dtype: DType, masked: bool) -> None:
    params, rng = PARAMS[form], np.random.default_rng(3)
    arrays = [rng.standard_normal((2, HEADS, size, WIDTH)).astype(dtype.numpy) for size in (rows, keys, keys)]
    if masked:
        mask = rng.random((rows, keys)) < 0.4
        mask[0] = False
        arrays.append(mask)
    if "sinks" in params:
        arrays.append(4 * rng.standard_normal((HEADS, 1, 1)).astype(dtype.numpy))
    others = [Tensor(boolean if a.dtype == np.bool_ else dtype, a.shape) for a in arrays[3:]]
    (found,) = run_interpreted(trial(rows, keys, dtype, params, others), arrays)
    wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
    expected = Attention.reference(*wide, causal=False, scale=0.2, **params)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(expected).any() == (masked and "undefined" in params)
    error = np.nan_to_num(found.astype(np.float64) - expected)
    assert np.linalg.norm(error) <= (4e-3 if dtype == bf16 else 6e-4) * np.linalg.norm(np.nan_to_num(expected))


@needs_ptxas
@pytest.mark.parametrize("kind", [boolean, bf16])
@pytest.mark.parametrize(("rows", "keys"), [(197, 256), (256, 197), (333, 777)])
def test_masks_of_odd_lengths_assemble(rows: int, keys: int, kind: DType) -> None:
    """A mask that ends within a tile leaves the words of weights as they are."""
    made = trial(rows, keys, bf16, {"sinks": True}, [Tensor(kind, (rows, keys)), Tensor(bf16, (HEADS, 1, 1))])
    code = compile_kernels({f"k{n}": call.kernel.op for n, call in enumerate(made.lowered.calls)}, TARGET)
    assert not assemble(code.ptx, TARGET.arch).error
