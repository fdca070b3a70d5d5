"""Products of few rows whose weights TMA brings: run as PTX with mbarriers, and what may start early."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.ir.programmatic_launch import mark_fixed
from weft.backends.nvidia.ir.row_streams import StreamOp
from weft.backends.nvidia.pipeline import pipeline_weights
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, f16
from weft.lower.dot import skinny_gemm
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.machine import gpu_machine
from weft.lower.steps import KernelStep, Plan
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of
from weft.tile import dialect as tile

from ..layout.test_tensor_cores import agree, expected, linear, operands, trial_of
from ..ptx_machine import Memory
from ..ptx_streams import run_streams
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import planned

GPU, TARGET = gpu_machine(), target_named("sm_90a")


@pytest.fixture
def all_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (skinny_gemm, pipeline_weights):
        monkeypatch.setattr(module, "LEAST_BROUGHT", 1)


def run(trial: Trial, arrays: list[np.ndarray], blocks: int, seed: int = 0) -> np.ndarray:
    (call,) = trial.lowered.calls
    name = call.kernel.op.sym_name.data
    code = compile_kernels({name: call.kernel.op}, TARGET)
    launch = code.launches[name]
    assert launch.persistent and launch.programmatic and blocks <= prod(call.kernel.op.grid.data)  # type: ignore[type-var]
    memory = Memory()
    out = np.full(trial.outputs[0].shape, np.nan, arrays[0].dtype)  # type: ignore[arg-type]
    addresses = [memory.add(array) for array in (*arrays, out)]
    run_streams(code.ptx, name, launch.threads, launch.shared, memory, addresses, blocks, seed)
    return memory.read(addresses[-1], out)


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((1, 40, 4096), 2),  # a ring goes round, over several programs
        ((1, 9, 2048), 2),  # the last program has one row
        ((3, 20, 1536), 1),
        ((8, 33, 1024), 2),
        ((9, 40, 512), 1),
        ((16, 70, 768), 2),
        ((4, 64, 256), 1),
    ],
    ids=str,
)
def test_results(shape: tuple[int, int, int], blocks: int, dtype: DType) -> None:
    arrays = operands(*shape, linear, dtype)
    agree(run(trial_of(arrays, linear), arrays, blocks), expected(arrays, linear))


def scaled(b: Any, x: Any, w: Any, h: Any) -> Any:
    """A product by what a row of another tensor gives, as a norm has it."""
    total = b.sum(b.mul(h, h), dims=(1,), keep=True)
    return b.mul(b.dot(x, b.permute(w, dims=(1, 0))), b.rsqrt(total))


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize(("shape", "blocks"), [((1, 40, 4096), 2), ((3, 20, 1536), 1), ((8, 33, 1024), 2)], ids=str)
def test_rows_are_reduced_once_in_a_block(shape: tuple[int, int, int], blocks: int) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(side).astype(bf16.numpy) for side in ((m, k), (n, k), (m, k))]
    x, w, h = (array.astype(np.float64) for array in arrays)
    trial = trial_of(arrays, scaled)
    exact = x @ w.T / np.sqrt((h**2).sum(1, keepdims=True))
    agree(run(trial, arrays, blocks), exact)
    kernel, _ = annotate(trial.lowered.calls[0].kernel.op, TARGET)
    (stream,) = [op for op in kernel.block.ops if isinstance(op, StreamOp)]
    reduced = [op for op in stream.consumer.block.ops if isinstance(op, tile.ReduceOp)]
    assert len(reduced) == 1


def gated(b: Any, x: Any, w: Any, h: Any) -> Any:
    """A gate and what it opens, halves of the same weights, by a factor of the rows."""
    n, k = b.tensor(w).shape
    turned = b.permute(w, dims=(1, 0))
    halves = [b.slice(turned, starts=(0, start), shape=(k, n // 2), steps=(1, 1)) for start in (0, n // 2)]
    scale = b.rsqrt(b.sum(b.mul(h, h), dims=(1,), keep=True))
    gate, opened = (b.mul(b.dot(x, half), scale) for half in halves)
    return b.mul(b.silu(gate), opened)


@pytest.mark.usefixtures("all_brought")
@pytest.mark.parametrize(("shape", "blocks"), [((1, 80, 2048), 2), ((3, 36, 1536), 1), ((16, 34, 512), 2)], ids=str)
def test_two_products_share_a_ring(shape: tuple[int, int, int], blocks: int) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(side).astype(bf16.numpy) for side in ((m, k), (n, k), (m, k))]
    x, w, h = (array.astype(np.float64) for array in arrays)
    gate, opened = np.split(x @ w.T / np.sqrt((h**2).sum(1, keepdims=True)), 2, axis=1)
    agree(run(trial_of(arrays, gated), arrays, blocks), gate / (1 + np.exp(-gate)) * opened)


@pytest.mark.usefixtures("all_brought")
def test_copies_may_land_in_any_order() -> None:
    arrays = operands(2, 24, 2048, linear, bf16)
    trial, exact = trial_of(arrays, linear), expected(arrays, linear)
    for seed in range(4):
        agree(run(trial, arrays, 2, seed), exact)


@pytest.mark.parametrize("m", [1, 4, 5, 8, 16])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (14336, 4096), (4096, 14336), (4096, 11008), (5120, 13824)])
def test_weights_come_in_whole_pieces(m: int, n: int, k: int) -> None:
    _, columns, depth = choose_streaming_tiles(m, n, k, 1, GPU)
    assert k % depth == 0 and columns * depth == 8192 and columns >= m / 2


@needs_ptxas
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_two_blocks_fit_a_multiprocessor(rows: int) -> None:
    tensors = [Tensor(bf16, shape) for shape in ((rows, 4096), (14336, 4096), (14336,))]
    kernel = Trial.of(group_of(tensors, linear), "product", GPU).lowered.calls[0].kernel.op
    code = compile_kernels({"product": kernel}, TARGET)
    (launch,) = code.launches.values()
    assert launch.persistent and 2 * (launch.shared + 1024) <= 228 << 10
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error
    (taken,) = found.kernels.values()
    assert not taken.spilled and taken.registers * launch.threads * 2 <= TARGET.registers


def two_products(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.linear(x, v), w)


def streams(plan: Plan, kernels: dict[str, tile.KernelOp]) -> list[StreamOp]:
    mark_fixed(plan, kernels)
    names = [step.function for step in plan.steps if isinstance(step, KernelStep)]
    annotated = [annotate(kernels[name], TARGET)[0] for name in names]
    return [op for kernel in annotated for op in kernel.block.ops if isinstance(op, StreamOp)]


def test_kernels_ask_for_weights_before_they_wait() -> None:
    found = planned(two_products, (1, 1024), (2048, 1024), (4096, 2048))
    first, second = streams(found.plan, found.kernels)
    assert first.early is not None and second.early is not None
    names = [step.function for step in found.plan.steps if isinstance(step, KernelStep)]
    launches = compile_kernels(found.kernels, TARGET).launches
    assert [(launches[name].asked, launches[name].written) for name in names] == [((1,), (2,))] * 2


def test_weights_that_the_program_writes_are_waited_for() -> None:
    def updated(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.mul_(2)
        return two_products(x, v, w)

    found = planned(updated, (1, 1024), (2048, 1024), (4096, 2048))
    assert all(stream.early is None for stream in streams(found.plan, found.kernels)[1:])


def test_all_but_the_first_kernel_let_the_next_one_come_at_once() -> None:
    found = planned(two_products, (1, 1024), (2048, 1024), (4096, 2048))
    mark_fixed(found.plan, found.kernels)
    names = [step.function for step in found.plan.steps if isinstance(step, KernelStep)]
    for number, name in enumerate(names):
        ptx = compile_kernels({name: found.kernels[name]}, TARGET).ptx
        lets_come = ptx.index("griddepcontrol.launch_dependents") < ptx.index("griddepcontrol.wait")
        assert lets_come is (number > 0)


def test_a_kernel_that_may_be_the_first_waits_before_the_next_may_come() -> None:
    def twice(b: Any, x: Any) -> Any:
        return b.add(x, x)

    kernel = Trial.of(group_of([Tensor(bf16, (64, 64))], twice), "twice", GPU).lowered.calls[0].kernel.op
    ptx = compile_kernels({"twice": kernel}, TARGET).ptx
    waits, next_, load = (ptx.index(text) for text in ("griddepcontrol.wait", "launch_dependents", "ld.global"))
    assert waits < next_ < load
    assert "griddepcontrol" not in compile_kernels({"twice": kernel}, target_named("sm_80")).ptx


def test_of_many_blocks_only_those_that_begin_last_let_the_next_kernel_come() -> None:
    def twice(b: Any, x: Any) -> Any:
        return b.add(x, x)

    def ptx_of(rows: int) -> str:
        kernel = Trial.of(group_of([Tensor(bf16, (rows, 4096))], twice), "twice", GPU).lowered.calls[0].kernel.op
        return compile_kernels({"twice": kernel}, TARGET).ptx

    few, many = ptx_of(64), ptx_of(1 << 16)
    assert re.search(r"^\tgriddepcontrol.launch_dependents;", few, re.MULTILINE) and "nctaid" not in few
    assert re.search(r"^\t@%p\d+ griddepcontrol.launch_dependents;", many, re.MULTILINE) and "nctaid" in many
