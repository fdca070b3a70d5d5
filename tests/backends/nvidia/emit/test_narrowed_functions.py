"""Where results are rounded to 16 bits, functions are computed by fewer instructions, and rounded by one."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from xdsl.ir import SSAValue

from weft.backends.nvidia.emit import elements
from weft.backends.nvidia.ir.op_facts import loses_digits

from ..row_kernels import row_code, row_kernel, run_rows

BF16 = ml_dtypes.bfloat16


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / (x.abs().sqrt() + 1e-3)


def gradient(x: torch.Tensor) -> torch.Tensor:
    return (x.float() - torch.exp(-x.float().abs()) * 0.5).to(x.dtype)


def run(function: Callable[..., torch.Tensor], x: np.ndarray) -> tuple[np.ndarray, str]:
    kernel = row_kernel(function, x.shape)
    code = row_code(kernel, "sm_80")
    return run_rows(kernel, code, x, shape=x.shape).astype(np.float64), code.ptx


def numbers() -> np.ndarray:
    x = np.random.default_rng(5).standard_normal((8, 256)).astype(BF16)
    x[0, :5] = [np.inf, -np.inf, np.nan, 0, 1e-38]
    return x


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(BF16).astype(np.float64)


def test_quotients_and_roots() -> None:
    x = numbers()
    found, ptx = run(scaled, x)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        expected = rounded(wide / rounded(rounded(np.sqrt(np.abs(wide))) + 1e-3))
    assert "div.full" in ptx and "sqrt.approx" in ptx and "cvt.rn.bf16.f32" not in ptx
    np.testing.assert_allclose(found, expected, rtol=2**-7)  # the other neighbour, where the two are as near


def test_exponentials_that_are_added_to() -> None:
    x = numbers()
    found, ptx = run(gradient, x)
    expected = x.astype(np.float64) - np.exp(-np.abs(x.astype(np.float64))) * 0.5
    assert "ex2.approx.ftz" in ptx and "ex2.approx.f32" not in ptx
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-6)


def test_tangents_keep_the_sign_of_zero() -> None:
    x = numbers()
    x[1, :2] = [0.0, -0.0]
    found, _ = run(torch.tanh, x)
    np.testing.assert_allclose(found, np.tanh(x.astype(np.float64)), rtol=2**-8, atol=1e-38)
    assert list(np.signbit(found[1, :2])) == [False, True]


def test_how_a_function_is_computed_is_decided_once_for_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counted(value: SSAValue, summed: bool) -> bool:
        asked.append(value)
        return loses_digits(value, summed)

    monkeypatch.setattr(elements, "loses_digits", counted)
    row_code(row_kernel(gradient, (8, 4096)), "sm_80")
    assert asked and len(asked) == len(set(asked))
