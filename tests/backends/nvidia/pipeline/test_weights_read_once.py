"""Products of up to 64 rows: weights come before the kernel ahead has ended, and K is cut where tiles are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.dialect import RESIDENT, integer
from weft.backends.nvidia.ir.rings import TmaLoadOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.target import target_named
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, bf16, f16, i32
from weft.lower.machine import gpu_machine
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas

GPU, TARGET = gpu_machine(), target_named("sm_90a")


def linear(b: Any, x: Any, w: Any, c: Any, r: Any) -> Any:
    return b.add(b.silu(b.add(b.dot(x, b.permute(w, dims=(1, 0))), c)), r)


def gated(b: Any, x: Any, w: Any, v: Any) -> Any:
    return b.mul(b.silu(b.dot(x, b.permute(w, dims=(1, 0)))), b.dot(x, b.permute(v, dims=(1, 0))))


def trial(m: int, n: int, k: int, body: Any = linear, dtype: DType = bf16) -> Trial:
    shapes = [(m, k), (n, k), (n,), (m, n)] if body is linear else [(m, k), (n, k), (n, k)]
    return Trial.of(group_of([Tensor(dtype, shape) for shape in shapes], body), "product", GPU)


def product_of(found: Trial, fixed: tuple[int, ...] = (1,)) -> tile.KernelOp:
    """The first kernel, with arguments that no kernel ahead writes."""
    kernel = found.lowered.calls[0].kernel.op
    kernel.attributes["nvidia.fixed"] = to_attribute(fixed)
    return kernel


def roles_of(kernel: tile.KernelOp) -> WarpSpecializeOp:
    (roles,) = [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]
    return roles


@pytest.mark.parametrize(
    ("shape", "body", "fixed"),
    [((64, 9216, 256), linear, (1,)), ((32, 256, 4096), linear, (1,)), ((40, 9216, 256), gated, (1, 2))],
    ids=["whole", "parts", "two"],
)
def test_weights_come_before_the_kernel_ahead_has_ended(
    shape: tuple[int, int, int], body: Any, fixed: tuple[int, ...]
) -> None:
    found = trial(*shape, body)
    kernel, launch = annotate(product_of(found, fixed), TARGET)
    roles = roles_of(kernel)
    resident = integer(kernel, RESIDENT)
    assert roles.early is not None and resident == (2 if len(found.lowered.calls) > 1 else 1)
    assert resident * (launch.shared + 1024) <= 228 << 10
    fills = [[op for op in block.walk() if isinstance(op, TmaLoadOp)] for block in roles.producers]
    assert [{launch.maps[op.map.value.data].argument for op in ops} for ops in fills] == [{0}, set(fixed)]
    assert compile_kernels({"product": product_of(found, fixed)}, TARGET).launches["product"].asked == fixed
    for block in (0, 39):
        check(protocol_of(kernel, block=block, blocks=40), runs=2)


def test_weights_that_may_change_are_waited_for() -> None:
    kernel, _ = annotate(product_of(trial(64, 14336, 4096), ()), TARGET)
    assert roles_of(kernel).early is None


def test_weights_that_a_number_chooses_are_waited_for() -> None:
    """The kernel ahead may write the number, even if it does not write the weights."""
    tensors = [Tensor(bf16, (64, 256)), Tensor(bf16, (3, 9216, 256)), *[Tensor(i32, (1,))] * 4]
    found = Trial.of(group_of(tensors, lambda b, *a: b.tiled_dot(*a, rows=64)), "product", GPU)
    kernel, launch = annotate(product_of(found), TARGET)
    assert launch.persistent and roles_of(kernel).early is None


@needs_ptxas
@pytest.mark.parametrize("shape", [(64, 14336, 4096), (17, 4096, 14336), (33, 32768, 1024), (64, 6144, 4096)])
def test_registers_are_enough(shape: tuple[int, int, int]) -> None:
    made = trial(*shape)
    code, resident = compile_kernels({"product": product_of(made)}, TARGET), len(made.lowered.calls)
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error
    (taken,) = found.kernels.values()
    assert not taken.spilled and taken.registers * code.launches["product"].threads * resident <= TARGET.registers


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("shape", [(32, 512, 2048), (50, 136, 4096), (17, 70, 1920), (64, 64, 200)])
def test_parts_of_k_add_up(shape: tuple[int, int, int], dtype: DType) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    x, w, c, r = (rng.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (n, k), (n,), (m, n)))
    (result,) = run_interpreted(trial(m, n, k, dtype=dtype), [x, w, c, r])
    y = x.astype(float) @ w.astype(float).T + c.astype(float)
    exact = y / (1 + np.exp(-y)) + r.astype(float)
    assert np.linalg.norm(result.astype(float) - exact) / np.linalg.norm(exact) < 4e-3


def test_few_tiles_are_cut_and_many_are_not() -> None:
    assert len(trial(64, 4096, 14336).lowered.calls) == 2
    assert len(trial(64, 14336, 4096).lowered.calls) == 1
    (parts, whole) = trial(64, 4096, 14336).lowered.calls
    assert [argument.role for argument in parts.arguments] == ["input"] * 4 + ["scratch"]
    assert [argument.role for argument in whole.arguments] == ["input"] * 4 + ["scratch", "output"]
