"""Reductions that are cut into parts: what the kernel behind them reads, and what it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.lower.machine import gpu_machine
from weft.lower.steps import KernelStep
from weft.testing.interpreted import GpuInterpreter

Function = Callable[..., tuple[Tensor, ...]]


def after_a_sum(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """A gradient that arrives twice, as it goes on, and less its mean."""
    total = x + y * z
    return total, total - total.mean((0, 2), keepdim=True)


def of_a_product(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    product = x * 2
    return product, product - x.sum((0, 2), keepdim=True)


def _buffers_of_the_last(function: Function, *tensors: Tensor) -> tuple[int, int]:
    """How many large operands the last kernel of a cut reduction reads, and the parts' kernel."""
    torch.compiler.reset()
    backend = GpuInterpreter(gpu_machine())
    found = torch.compile(function, backend=backend, dynamic=False)(*tensors)
    for own, wanted in zip(found, function(*(tensor.double() for tensor in tensors)), strict=True):
        assert (own.double() - wanted).norm() < 1e-6 * wanted.norm()
    plan = backend.plans[-1].plan
    counts: list[int] = []
    for ending in ("_parts", "_rest"):
        (step,) = (s for s in plan.steps if isinstance(s, KernelStep) and s.function.endswith(ending))
        large = [b for b in step.buffers if plan.buffers[b].tensor.shape == tensors[0].shape]
        counts.append(sum(plan.buffers[b].role == "input" for b in large))
    return counts[0], counts[1]


@pytest.mark.parametrize("shape", [(64, 8, 3136), (101, 3, 4000)], ids=str)
def test_a_result_written_with_the_parts_is_read_in_place_of_what_it_is_computed_from(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    parts, rest = _buffers_of_the_last(after_a_sum, *(torch.randn(shape) for _ in range(3)))
    assert (parts, rest) == (3, 0)


def test_an_operand_is_read_where_that_is_no_more(shape: tuple[int, ...] = (64, 8, 3136)) -> None:
    parts, rest = _buffers_of_the_last(of_a_product, *(torch.randn(shape) for _ in range(3)))
    assert (parts, rest) == (1, 1)
