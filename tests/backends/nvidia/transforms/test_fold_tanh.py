"""1 + tanh x as 2 / (1 + e^-2x), and pairs of floats rounded at once: what the code computes, run on the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from weft.backends.nvidia.target import target_named
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..row_kernels import row_code, row_kernel, run_rows

TARGET = target_named("sm_90a")


def activated(x: torch.Tensor) -> torch.Tensor:
    """What some models spell out."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


def functions(function: object) -> list[str]:
    kernel, _ = annotate(row_kernel(function, (64, 512)), TARGET)  # type: ignore[arg-type]
    return [op.function.data for op in kernel.walk() if isinstance(op, tile.MapOp)]


def test_only_what_is_narrowed_is_folded() -> None:
    assert "tanh" not in functions(activated) and "sigmoid" in functions(activated)
    assert "tanh" in functions(lambda x: 1.0 + torch.tanh(x.float()))
    assert "tanh" in functions(lambda x: 2.0 + torch.tanh(x))


def test_the_code_of_an_activation() -> None:
    x = (np.random.default_rng(3).standard_normal((64, 512)) * 3).astype(ml_dtypes.bfloat16)
    x[0, :4] = np.inf, -np.inf, 100, -100
    kernel = row_kernel(activated, x.shape)
    code = row_code(kernel, TARGET.arch)
    assert "cvt.rn.bf16x2" in code.ptx and "cvt.rn.bf16.f32" not in code.ptx
    found = run_rows(kernel, code, x, shape=x.shape).astype(np.float64)
    with torch.no_grad():
        eager = activated(torch.from_numpy(x.astype(np.float32)).bfloat16()).double().numpy()
        exact = activated(torch.from_numpy(x.astype(np.float64))).numpy()
    usual = np.isfinite(exact)
    np.testing.assert_array_equal(found[~usual], eager[~usual])
    errors = [np.abs(each[usual] - exact[usual]).max() for each in (found, eager)]
    assert errors[0] <= errors[1]
