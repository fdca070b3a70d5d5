"""Products of few rows with weights of few bits: simulated, as PTX on a machine of NumPy, and assembled."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.ir.dialect import RESIDENT, integer
from weft.backends.nvidia.ir.mma import MmaOp
from weft.backends.nvidia.ir.programmatic_launch import mark_fixed
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, f8e4m3, f16, f32, u8
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.machine import gpu_machine
from weft.lower.steps import KernelStep
from weft.ops.matmul.quantized import FORMS, dequantized
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated

from ..layout.test_tensor_cores import agree, run_as_ptx
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import planned

GPU = gpu_machine()
CASES = [
    # rows, columns, depth, form, group, type of factors, zeros, type of the product
    (1, 24, 512, "int4", 32, bf16, False, bf16),
    (3, 17, 448, "int4", 64, f32, True, bf16),
    (16, 16, 1024, "int4", 512, f16, False, f16),
    (8, 20, 2080, "int4", 16, bf16, True, bf16),
    (1, 20, 288, "e2m1", 32, u8, False, bf16),
    (9, 16, 256, "e2m1", 16, f8e4m3, False, bf16),
    (2, 33, 160, "e2m1", 32, u8, False, f16),
    (1, 16, 520, "int8", 520, f32, False, bf16),
    (4, 24, 128, "int8", 32, f16, False, f16),
    (1, 16, 256, "e4m3", 256, f32, False, bf16),
    (5, 24, 384, "e4m3", 128, f32, False, f16),
]


def operands(m: int, n: int, k: int, form: str, group: int, scale: DType, zeros: bool, dtype: DType) -> list[Any]:
    rng = np.random.default_rng(m + n + k)
    how = FORMS[form]
    codes = rng.integers(0, 256, (n, k // how.together)).astype(np.uint8).view(how.dtype.numpy)
    if form == "e4m3":
        codes = rng.standard_normal((n, k)).astype(how.dtype.numpy)
    shape = n, k // group
    scales = rng.integers(118, 124, shape) if scale == u8 else rng.uniform(0.01, 0.1, shape)
    found = [rng.standard_normal((m, k)).astype(dtype.numpy), codes, scales.astype(scale.numpy)]
    return [*found, rng.integers(0, 16, shape).astype(np.uint8)] if zeros else found


def trial_of(arrays: list[Any], form: str, dtype: DType) -> Trial:
    def body(b: Any, x: Any, *parts: Any) -> Any:
        return b.dot(x, b.permute(b.dequantize(*parts, form=form, dtype=dtype), dims=(1, 0)))

    return Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "product", GPU)


def expected(arrays: list[Any], form: str, group: int, dtype: DType) -> np.ndarray:
    x, codes, scales, *zeros = arrays
    weights = dequantized(codes, scales, zeros[0] if zeros else None, form, group).astype(dtype.numpy)
    return x.astype(np.float64) @ weights.astype(np.float64).T


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_codes_are_widened_in_registers(case: tuple[Any, ...]) -> None:
    *_, form, group, _, _, dtype = case
    arrays = operands(*case)
    trial, exact = trial_of(arrays, form, dtype), expected(arrays, form, group, dtype)
    agree(run_interpreted(trial, arrays)[0], exact)
    agree(run_simulated(trial, arrays)[0], exact)
    agree(run_as_ptx(trial, arrays, "sm_90a"), exact)


@pytest.mark.parametrize("case", [CASES[0], CASES[9], CASES[10]], ids=lambda case: case[3])
def test_codes_on_an_older_gpu(case: tuple[Any, ...]) -> None:
    *_, form, group, _, _, dtype = case
    arrays = operands(*case)
    agree(run_as_ptx(trial_of(arrays, form, dtype), arrays, "sm_80"), expected(arrays, form, group, dtype))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_all_floats_of_8_bits(arch: str) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    codes[codes & 0x7F == 0x7F] = 0
    codes[3, :] = 0x7F  # no number
    codes = codes.view(ml_dtypes.float8_e4m3fn)
    arrays = [np.eye(16, dtype=ml_dtypes.bfloat16), codes, np.ones((16, 1), np.float32)]
    actual = run_as_ptx(trial_of(arrays, "e4m3", bf16), arrays, arch)
    assert np.array_equal(actual.astype(np.float32), codes.astype(np.float32).T, equal_nan=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_all_floats_of_4_bits_and_powers_of_two(arch: str) -> None:
    scales = np.array([0, 1, 2, 3, 100, 126, 127, 128, 129, 200, 250, 255, 0, 5, 6, 7], np.uint8)[:, None]
    codes = np.tile(np.arange(8, dtype=np.uint8) * 34 + 16, (16, 1))  # 0, 1, 2, ... 15
    arrays = [np.eye(16, dtype=ml_dtypes.bfloat16), codes, scales]
    actual = run_as_ptx(trial_of(arrays, "e2m1", bf16), arrays, arch)
    exact = dequantized(codes, scales, None, "e2m1", 16).astype(ml_dtypes.bfloat16)
    assert np.array_equal(actual.astype(np.float32), exact.astype(np.float32).T, equal_nan=True)


def test_a_group_of_any_length_is_widened_first() -> None:
    """Five neighbours are no part of a word: the kernel reads weights one by one, and is right."""
    arrays = operands(2, 20, 40, "int4", 5, f32, False, bf16)
    trial = trial_of(arrays, "int4", bf16)
    agree(run_interpreted(trial, arrays)[0], expected(arrays, "int4", 5, bf16))


@pytest.mark.parametrize(("form", "group"), [("e2m1", 16), ("e4m3", 0)])
def test_a_factor_for_all_is_applied_before_f16_rounds(form: str, group: int) -> None:
    k, factor = 4096, np.float32(2**-12)
    x, codes, scales = operands(2, 16, k, form, group or k, f8e4m3, False, f16)
    x, scales = x * np.float16(4), np.full(scales.shape, 448.0, f8e4m3.numpy)
    if not group:
        codes = np.full((16, k), 448.0, f8e4m3.numpy)
        x = np.abs(x)
    arrays = [x, codes, scales, factor.reshape(1)] if group else [x, codes, factor.reshape(1)]

    def body(b: Any, x: Any, *parts: Any) -> Any:
        made = b.dot(x, b.permute(b.dequantize(*parts[:-1], form=form, dtype=f16), dims=(1, 0)))
        return b.cast(b.mul(b.cast(made, dtype=f32), parts[-1]), dtype=f16)

    trial = Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "product", GPU)
    weights = dequantized(codes, scales if group else None, None, form, group or 1)
    product = x.astype(np.float64) @ weights.astype(np.float64).T
    assert np.abs(product).max() > 65504
    agree(run_as_ptx(trial, arrays, "sm_90a"), product * factor)


def test_codes_and_factors_are_read_ahead() -> None:
    arrays = operands(1, 16, 16384, "int4", 32, bf16, False, bf16)
    given = trial_of(arrays, "int4", bf16).lowered.calls[0].kernel.op
    kernel, _ = annotate(given, target_named("sm_90a"))
    assert str(kernel).count("nvidia.ahead") == 2 and "nvidia.convert" not in str(kernel)
    assert compile_kernels({"product": given}, target_named("sm_90a")).launches["product"].ahead


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize(("form", "group", "scale"), [("int4", 32, bf16), ("e2m1", 32, u8), ("e4m3", 4096, f32)])
def test_registers_are_enough(rows: int, arch: str, form: str, group: int, scale: DType) -> None:
    machine = gpu_machine(clusters=arch == "sm_90a")
    for n, k in ((14336, 4096), (4096, 14336)):
        shapes = [(rows, k), (n, k // FORMS[form].together), (n, k // group if group < 4096 else 1)]
        tensors = [Tensor(dtype, shape) for dtype, shape in zip((bf16, FORMS[form].dtype, scale), shapes, strict=True)]

        def body(b: Any, x: Any, *parts: Any) -> Any:
            return b.dot(x, b.permute(b.dequantize(*parts, form=form, dtype=bf16), dims=(1, 0)))

        kernel = Trial.of(group_of(tensors, body), "product", machine).lowered.calls[0].kernel.op
        found = assemble(compile_kernels({"product": kernel}, target_named(arch)).ptx, arch)
        assert not found.error
        assert all(not each.spilled for each in found.kernels.values()), (n, k, found.kernels)


def two_products(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.linear(x, v), w)


def test_threads_ask_for_weights_before_the_kernel_ahead_has_ended() -> None:
    """A program's first kernel, too: it is launched so that it waits where nobody knows what is ahead of it."""
    found = planned(two_products, (1, 2880), (2880, 2880), (5760, 2880))
    mark_fixed(found.plan, found.kernels)
    names = [step.function for step in found.plan.steps if isinstance(step, KernelStep)]
    for name in names:
        code = compile_kernels({name: found.kernels[name]}, target_named("sm_90a"))
        assert code.ptx.index("ld.global") < code.ptx.index("griddepcontrol.wait")
        assert code.launches[name].asked == (1,) and not code.launches[name].ahead, "of codes alone"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "case",
    [
        (1, 16, 2880, "int4", 32, bf16, False, bf16),
        (1, 20, 8320, "e2m1", 32, u8, False, bf16),
        (1, 9, 8192 + 64, "int4", 64, f16, True, f16),
        (1, 16, 8192, "int8", 8192, f32, False, bf16),
    ],
    ids=str,
)
def test_a_row_is_held_in_shared_memory(case: tuple[Any, ...], arch: str) -> None:
    """Also where the last turn has less of it than the others."""
    *_, form, group, _, _, dtype = case
    arrays = operands(*case)
    trial = trial_of(arrays, form, dtype)
    kernel, _ = annotate(trial.lowered.calls[0].kernel.op, target_named(arch))
    assert "nvidia.held" in str(kernel)
    agree(run_simulated(trial, arrays)[0], expected(arrays, form, group, dtype))
    agree(run_as_ptx(trial, arrays, arch), expected(arrays, form, group, dtype))


@pytest.mark.parametrize(
    ("n", "k", "tile", "resident"),
    [
        (14336, 4096, (1, 16, 1024), 4),
        (4096, 14336, (1, 16, 2048), 2),
        (6144, 4096, (1, 16, 2048), 3),
        (28672, 4096, (1, 32, 1024), 3),
    ],
)
def test_blocks_of_a_row(n: int, k: int, tile: tuple[int, int, int], resident: int) -> None:
    """Eight warps each; a multiprocessor has room for no more of them than it has programs."""
    assert choose_streaming_tiles(1, n, k, 1, GPU, 4) == tile
    arrays = [Tensor(bf16, (1, k)), Tensor(u8, (n, k // 2)), Tensor(u8, (n, k // 32))]

    def body(b: Any, x: Any, *parts: Any) -> Any:
        return b.dot(x, b.permute(b.dequantize(*parts, form="e2m1", dtype=bf16), dims=(1, 0)))

    kernel = Trial.of(group_of(arrays, body), "product", GPU).lowered.calls[0].kernel.op
    kernel, launch = annotate(kernel, target_named("sm_90a"))
    assert (launch.threads, integer(kernel, RESIDENT)) == (256, resident)


@pytest.mark.parametrize(
    "case",
    [(1, 40, 2048, "int4", 128, bf16, False, bf16), (1, 33, 2880, "e2m1", 32, u8, False, bf16)],
    ids=str,
)
def test_a_gate_and_what_it_opens_are_products_of_one_kernel(case: tuple[Any, ...]) -> None:
    *_, form, group, _, _, dtype = case
    x, *parts = operands(*case)
    others = [np.roll(part, 1, axis=0) for part in parts]
    arrays = [x, *parts, *others]

    def body(b: Any, x: Any, *parts: Any) -> Any:
        def made(*parts: Any) -> Any:
            return b.dot(x, b.permute(b.dequantize(*parts, form=form, dtype=dtype), dims=(1, 0)))

        return b.mul(b.silu(made(*parts[:2])), made(*parts[2:]))

    trial = Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "product", GPU)
    kernel, _ = annotate(trial.lowered.calls[0].kernel.op, target_named("sm_90a"))
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    assert len(products) == 2 and "nvidia.held" in str(kernel)
    gate, up = (expected([x, *each], form, group, dtype) for each in (parts, others))
    exact = gate / (1 + np.exp(-gate)) * up
    for made in (run_interpreted(trial, arrays)[0], run_simulated(trial, arrays)[0]):
        agree(made, exact)
    agree(run_as_ptx(trial, arrays, "sm_90a"), exact)


def test_blocks_of_rows_with_matrices_of_their_own() -> None:
    """Four rows of one matrix each are as many programs as one row of four times the columns."""
    for n, k in (5760, 2880), (2880, 2880), (28672, 4096):
        assert choose_streaming_tiles(1, n, k, 4, GPU, 4) == choose_streaming_tiles(1, 4 * n, k, 1, GPU, 4)
