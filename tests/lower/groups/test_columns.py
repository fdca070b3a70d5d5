"""Reductions in stages: those that do not need each other share their loops with what can be written already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.runtime.record import recording
from weft.testing.comparison import Comparison, compare


def checked(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """Compare with float64 and give the text of the tile kernels."""
    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    with torch.no_grad(), recording(programs=True) as records:
        judged = [_judged(function, compiled, *inputs)]
        # Eager's error in one draw may be small by chance: in 6 % of them, below half of what it is in the mean.
        order = torch.randperm(len(inputs[0]))
        judged += [_judged(function, compiled, *(x[order] for x in inputs))]
    assert any(each.ok for each in judged), "\n".join(map(str, judged))
    (record,) = records
    return record.programs["tile"]


def _judged(function: Callable[..., Any], compiled: Callable[..., Any], *inputs: torch.Tensor) -> Comparison:
    found = compiled(*(x.clone() for x in inputs))
    return compare(found, function(*(x.clone() for x in inputs)), function(*(x.double() for x in inputs)))


@pytest.mark.parametrize("shape", [(37, 48), (600, 20), (300, 1), (1000, 30)])
def test_what_is_summed_is_written_in_the_same_loop(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.rand(shape)
    text = checked(lambda x, y: (p := torch.sigmoid(x) * y, p.sum(0), (p * p).sum(0)), x, y)
    assert text.count('"sigmoid"') + text.count("sigmoid(") <= 1


@pytest.mark.parametrize("shape", [(9, 12, 5, 4), (2, 3, 70, 80)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_stages(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    def normalized(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, total = x.mean((0, 2, 3), keepdim=True), y.sum((0, 2, 3), keepdim=True)
        spread = (x - mean).square().mean((0, 2, 3), keepdim=True)
        return (x - mean) * torch.rsqrt(spread + 1), total, x * y, y.amax((0, 2, 3))

    checked(normalized, *(make(shape).to(memory_format=layout) for make in (torch.randn, torch.rand)))


def test_what_is_written_over_an_operand_waits() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        total = y.sum(0)
        x.copy_(y)
        return total, (y - total).square().sum(0), x

    checked(step, torch.randn(50, 24))
