"""Elementwise ops are computed in the shape that their readers reshape them to, of operands of any rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.lower.machine import gpu_machine
from weft.testing.interpreted import GpuInterpreter

PROGRAMS: list[tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = [
    (lambda x: x.exp().reshape(1, 1, 1) * 2, [()]),
    (lambda x, y: (x + y).reshape(1) * 2, [(1, 1, 1), (1, 1, 1)]),
    (lambda x, y: (x + y).reshape(1, 1, 1) * 2, [(1, 1), (1, 1)]),
    (lambda x, y: torch.where(x > 0, x, y).reshape(1, 1) * 2, [(1, 1, 1), (1,)]),
    (lambda x, y: (x + y).reshape(1, 1, 12) * 2, [(12,), (1, 1)]),
    (lambda x, y: ((x + y) * y).reshape(12, 5) + 1, [(3, 4, 5), (3, 4, 1)]),
    (lambda x, y: ((x + 1).reshape(12, 5).exp() * y).reshape(3, 4, 5).sum(2), [(3, 4, 5), (12, 5)]),
    (lambda x, y: ((x + y).reshape(12, 5).exp() * 2).reshape(3, 4, 5) * y, [(3, 4, 5), (3, 4, 5)]),
]


@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda each: str(each) if isinstance(each, list) else "")
def test_results_have_the_shape_that_they_are_reshaped_to(
    program: Callable[..., Tensor], shapes: list[tuple[int, ...]]
) -> None:
    torch.compiler.reset()
    tensors = [torch.randn(shape) for shape in shapes]
    found = torch.compile(program, backend=GpuInterpreter(gpu_machine()), dynamic=False)(*tensors)
    torch.testing.assert_close(found, program(*tensors))
