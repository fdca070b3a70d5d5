"""Kernels that work row by row and sum up columns: what they compute, and how many a gradient takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.lower.machine import gpu_machine
from weft.testing.interpreted import GpuInterpreter

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight) + bias


def activation(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x * weight + bias)


def gradients(function: Function, tensors: list[Tensor], gradient: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    return list(torch.autograd.grad(function(*leaves), leaves, gradient))


@pytest.mark.parametrize("function", [layer_norm, rms_norm, activation])
@pytest.mark.parametrize("shape", [(2, 130, 96), (3, 101, 520)], ids=str)
def test_gradients_of_rows_and_columns_are_one_kernel_and_one_that_adds_up(
    function: Function, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    tensors = [torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])]
    gradient = torch.randn(shape)
    backend = GpuInterpreter(gpu_machine())
    compiled = torch.compile(function, backend=backend, dynamic=False)
    found = gradients(compiled, tensors, gradient)
    exact = gradients(function, [tensor.double() for tensor in tensors], gradient.double())
    for own, wanted in zip(found, exact, strict=True):
        assert (own.double() - wanted).norm() < 1e-6 * wanted.norm()
    names = [name for name in backend.plans[-1].kernels if name.endswith(("_rows", "_sums"))]
    assert [name.rsplit("_", 1)[1] for name in names] == ["rows", "sums"]


def windows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Rows as windows of 7 by 7 have them: several runs, of which the longest has few."""
    rows = F.layer_norm(x, x.shape[-1:], weight, bias)
    return rows.view(x.shape[0], 4, 7, 3, 7, x.shape[-1]).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, x.shape[-1])


@pytest.mark.parametrize("images", [3, 40])
def test_programs_share_rows_that_are_several_runs(images: int) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    tensors = [torch.randn(images, 28 * 21, 96), torch.randn(96), torch.randn(96)]
    gradient = torch.randn(images * 12, 49, 96)
    backend = GpuInterpreter(gpu_machine())
    found = gradients(torch.compile(windows, backend=backend, dynamic=False), tensors, gradient)
    exact = gradients(windows, [tensor.double() for tensor in tensors], gradient.double())
    for own, wanted in zip(found, exact, strict=True):
        assert (own.double() - wanted).norm() < 1e-6 * wanted.norm()
    walking = [kernel for kernel in backend.plans[-1].kernels.values() if kernel.persistent is not None]
    assert walking
    for kernel in walking:
        *_, programs = kernel.grid.data
        assert isinstance(programs, int)
        assert programs >= 40


def test_what_needs_the_sums_in_every_row_is_another_kernel() -> None:
    torch.compiler.reset()
    x = torch.randn(300, 96)
    backend = GpuInterpreter(gpu_machine())
    found = torch.compile(lambda x: x.exp() - x.exp().sum(0), backend=backend, dynamic=False)(x)
    torch.testing.assert_close(found, x.exp() - x.exp().sum(0), rtol=1e-5, atol=1e-3)
