"""Gradients of norms and activations as PTX: rows and sums of their columns in one kernel, which spills nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.backends.nvidia.target import target_named
from weft.lower.steps import KernelStep
from weft.passes.grouping import kernel_groups
from weft.pipelines import compile_kernels
from weft.runtime.plan_executor import Frame

from .. import emulated_graphs
from ..emulated_graphs import EmulatedExecutor, emulated
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import planned

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def masked_norm(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As in a block of a transformer: operands of 4, 2 and 1 bytes."""
    hidden = x + (bias * mask).bfloat16()
    return F.layer_norm(hidden, hidden.shape[-1:], weight).bfloat16() + hidden


def gated(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    gate, up = (x * mask + bias).chunk(2, -1)
    return F.silu(gate) * up


def norm(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


@pytest.mark.parametrize("columns", [96, 768, 1000])
@pytest.mark.parametrize("function", [masked_norm, gated, norm])
def test_gradients_of_rows_and_their_column_sums_are_right_as_ptx(
    function: Function, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 768 were reduced over four of six warps once: fewer rows than these are two kernels by themselves."""
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)
    ran, run = list[str](), EmulatedExecutor._run_kernel

    def noted(self: EmulatedExecutor, step: KernelStep, frame: Frame) -> None:
        ran.append(step.function)
        run(self, step, frame)

    monkeypatch.setattr(EmulatedExecutor, "_run_kernel", noted)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if function is norm else torch.float32
    x, mask = torch.randn(11, columns).to(dtype), torch.rand(11, columns) < 0.9
    tensors = [x, torch.randn(columns).to(dtype), torch.randn(columns).to(dtype)]
    seed = torch.randn(11, columns // 2 if function is gated else columns, dtype=torch.float64)

    def gradients(function: Function, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        out = function(leaves[0], mask, *leaves[1:])
        found = torch.autograd.grad(out, leaves, seed.to(out.dtype), allow_unused=True)
        return [tensor for tensor in found if tensor is not None]

    own = gradients(emulated(function), tensors)
    assert any(name.endswith("_rows") for name in ran)
    exact = gradients(function, [tensor.double() for tensor in tensors])
    eager = gradients(function, tensors)
    for found, wanted, usual in zip(own, exact, eager, strict=True):
        error, allowed = (found.double() - wanted).norm(), (usual.double() - wanted).norm()
        assert error <= 2 * allowed + 1e-5 * wanted.norm()


def norm_gradient(dy: Tensor, x: Tensor, residual: Tensor, mask: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of a block of a transformer: four operands of the rows, two results and three sums of columns."""
    x, dy = x.float(), dy.float()
    x = (x - x.mean(-1, keepdim=True)) * 0.5
    scaled = dy * weight
    dx = residual.float() + scaled - scaled.mean(-1, keepdim=True) - x * (scaled * x).mean(-1, keepdim=True)
    dropped = (dx * (mask > 0)).bfloat16()
    return dx, dropped, (dy * x).sum(0), dy.sum(0), dropped.float().sum(0)


@needs_ptxas
@pytest.mark.parametrize("columns", [768, 1024, 4096])
def test_programs_that_carry_sums_spill_nothing_and_all_stay_at_once(columns: int) -> None:
    target, rows = target_named("sm_90a"), (8192, columns)
    plan = planned(norm_gradient, rows, rows, rows, rows, (columns,))
    (name,) = [name for name in plan.kernels if name.endswith("_rows")]
    code = compile_kernels({name: plan.kernels[name]}, target)
    used = assemble(code.ptx, "sm_90a").kernels[name]
    assert used.spilled == 0
    launch, (programs,) = code.launches[name], plan.kernels[name].grid.data
    assert programs <= target.multiprocessors * target.blocks(launch.threads, used.registers, launch.shared)


def rms_gradient(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    wide, x = dy.float(), x.float() * scale
    scaled = wide * weight
    return ((scaled - x * (scaled * x).mean(-1, keepdim=True)) * scale).bfloat16(), (wide * x).sum(0)


@needs_ptxas
@pytest.mark.parametrize("columns", [9864, 10240])
def test_long_rows_and_one_sum_are_one_kernel_that_spills_nothing(columns: int) -> None:
    rows = (8192, columns)
    plan = planned(rms_gradient, rows, rows, (8192, 1), (columns,))
    (name, _) = plan.kernels
    assert name.endswith("_rows")
    code = compile_kernels({name: plan.kernels[name]}, target_named("sm_90a"))
    assert assemble(code.ptx, "sm_90a").kernels[name].spilled == 0


def layer_norm_gradient(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    wide, x = dy.float(), (x.float() - mean.float()) * scale.float()
    scaled = wide * weight.float()
    dx = scaled - scaled.mean(-1, keepdim=True) - x * (scaled * x).mean(-1, keepdim=True)
    return (dx * scale.float()).bfloat16(), (wide * x).sum(0), wide.sum(0)


@needs_ptxas
@pytest.mark.parametrize("columns", [9216, 10240])
def test_long_rows_and_two_sums_are_one_kernel_that_reads_them_again_and_spills_nothing(columns: int) -> None:
    rows = (8192, columns)
    plan = planned(layer_norm_gradient, rows, rows, (8192, 1), (8192, 1), (columns,))
    (name, _) = plan.kernels
    assert name.endswith("_rows") and plan.kernels[name].reread is not None
    code = compile_kernels({name: plan.kernels[name]}, target_named("sm_90a"))
    assert assemble(code.ptx, "sm_90a").kernels[name].spilled == 0


@needs_ptxas
def test_columns_far_below_a_power_of_two_spill_nothing() -> None:
    """Threads have columns for that power, which rows of 152 do not fill."""
    rows = (11763, 152)
    plan = planned(layer_norm_gradient, rows, rows, (11763, 1), (11763, 1), (152,))
    (name,) = [name for name in plan.kernels if name.endswith("_rows")]
    code = compile_kernels({name: plan.kernels[name]}, target_named("sm_90a"))
    assert assemble(code.ptx, "sm_90a").kernels[name].spilled == 0


def activation_gradient(dy: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    dx = torch.ops.aten.gelu_backward(dy.float(), x.float() + bias, approximate="tanh").bfloat16()
    return dx, dx.float().sum(0)


@needs_ptxas
@pytest.mark.parametrize("columns", [152, 768, 1024, 2072, 8192])
def test_programs_that_load_and_compute_in_turn_fill_a_multiprocessor(columns: int) -> None:
    target, rows = target_named("sm_90a"), (8192, columns)
    plan = planned(activation_gradient, rows, rows, (columns,))
    (name,) = [name for name in plan.kernels if name.endswith("_rows")]
    code = compile_kernels({name: plan.kernels[name]}, target)
    used, launch = assemble(code.ptx, "sm_90a").kernels[name], code.launches[name]
    assert used.spilled == 0
    assert launch.threads * target.blocks(launch.threads, used.registers, launch.shared) >= 1024


@pytest.mark.parametrize("columns", [152, 768, 2072])
def test_rows_whose_warps_stand_one_below_the_other_are_right_as_ptx(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU so small that programs have several turns, the last of which has fewer rows."""
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)
    monkeypatch.setattr(emulated_graphs, "target_named", lambda arch: replace(target_named(arch), multiprocessors=1))
    torch.manual_seed(columns)
    given = [torch.randn(37, columns).bfloat16(), torch.randn(37, columns).bfloat16(), torch.randn(columns).bfloat16()]
    found = emulated(activation_gradient)(*given)
    dx = torch.ops.aten.gelu_backward(given[0].double(), given[1].double() + given[2].double(), approximate="tanh")
    assert (found[0].double() - dx).norm() <= 4e-3 * dx.norm()
    assert (found[1].double() - found[0].double().sum(0)).norm() <= 1e-5 * dx.sum(0).norm()


@pytest.mark.parametrize("columns", [90, 1001])
def test_longer_rows_and_their_column_sums_are_right_as_ptx(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of logits with a bias, in rows that TMA reads."""
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)

    def gradient(logits: Tensor, largest: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.pad(((logits.float() - largest).exp() * scale).to(logits.dtype), (0, -columns % 8))
        return rows, rows.sum(0)

    torch.manual_seed(0)
    logits, scale = torch.randn(13, columns).bfloat16(), torch.randn(13, 1)
    given = [logits, logits.float().amax(1, keepdim=True), scale]
    found, wanted = emulated(gradient)(*given), gradient(*(each.double() for each in given))
    assert torch.count_nonzero(found[0][:, columns:]) == 0 and found[0].shape[1] % 8 == 0
    for one, exact in zip(found, wanted, strict=True):
        assert (one.double() - exact).norm() <= 5e-3 * exact.norm()
