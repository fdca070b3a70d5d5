"""Matmuls of a GPU that add to what is there, in their epilogue: emulated, and assembled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.ir.types import Tensor, bf16
from weft.lower.machine import machine_of
from weft.lower.plan import build_plan
from weft.lower.steps import KernelStep
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.pipelines import compile_nvidia, nvidia_passes, run_passes
from weft.runtime.memory import plan_arena
from weft.runtime.record import compilation
from weft.testing.interpreted import InterpretedExecutor

from ..emulated_graphs import executor_of
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
OWN = Config(strict=True, cache=False)


def sums(sides: tuple[int, int, int], count: int = 3) -> FuncOp:
    """A sum of products of matrices [K, M], transposed, and [K, N]."""
    m, n, k = sides
    named = {f"{name}{each}": Tensor(bf16, (k, side)) for each in range(count) for name, side in (("x", m), ("y", n))}
    function = FuncOp.make("sums", named)
    b: Any = GraphBuilder(function.block)
    values = list(function.block.args)
    products = [b.dot(b.permute(x, dims=(1, 0)), y) for x, y in zip(values[::2], values[1::2], strict=True)]
    total = products[0]
    for each in products[1:]:
        total = b.add(total, each)
    b.insert(ReturnOp.make([total]))
    return function


def checked(sides: tuple[int, int, int], run: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> None:
    m, n, k = sides
    torch.manual_seed(0)
    values = [torch.randn(k, side).to(torch.bfloat16) for _ in range(3) for side in (m, n)]
    exact = sum(x.double().t() @ y.double() for x, y in zip(values[::2], values[1::2], strict=True))
    assert isinstance(exact, torch.Tensor)
    (found,) = run(values)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=exact.abs().max().item() * 1e-2)


def test_each_product_adds_to_the_result() -> None:
    sides = (40, 72, 24)
    executor = executor_of(sums(sides), OpaqueRuntime({}), "sm_80", OWN)
    plan = executor.executable.plan
    assert [isinstance(step, KernelStep) and plan.outputs[0] in step.buffers for step in plan.steps] == [True] * 3
    assert plan_arena(plan, {}).size == 0
    checked(sides, lambda values: executor(values, {}))


def test_what_adds_up_the_parts_of_k_adds_to_the_result() -> None:
    sides, function = (64, 256, 8192), sums((64, 256, 8192))
    with compilation("sums") as report:
        run_passes(module_of(function), nvidia_passes(OWN, TARGET.capabilities), report, verify=True)
    made = build_plan(function, machine=machine_of(TARGET.capabilities, TARGET.multiprocessors))
    written = [isinstance(step, KernelStep) and made.plan.outputs[0] in step.buffers for step in made.plan.steps]
    assert len(written) == 6 and written[1::2] == [True] * 3  # the parts, and what they and the result add up to
    checked(sides, lambda values: InterpretedExecutor(made, OpaqueRuntime({}))(values, {}))


@needs_ptxas
def test_they_assemble_without_spills() -> None:
    made = compile_nvidia(sums((4096, 4096, 1024), 2), OWN, TARGET)
    assert plan_arena(made.plan, {}).size == 0
    found = assemble(made.code.ptx, "sm_90a")
    assert not found.error and all(not each.spilled for each in found.kernels.values())
