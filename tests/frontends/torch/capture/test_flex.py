"""FlexAttention: functions of places become masks, numbers that are added and limits of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from weft.lower.machine import gpu_machine
from weft.lower.steps import CallStep
from weft.testing.interpreted import GpuInterpreter

LENGTH = 160
SLOPES = torch.tensor([0.5, -0.25, 0.125, 0.0625])
LENGTHS = torch.tensor([100, 160])
Score = Callable[..., torch.Tensor]


def capped(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return torch.tanh(score / 20) * 20


def sloped(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return score + SLOPES[head] * (key - row)


def capped_and_hidden(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return torch.where(row - key < 64, 5 * torch.tanh(score / 5) - 0.1 * (row - key), -float("inf"))


def squared(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return score * score


def window(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return (row >= key) & (row - key < 100) & (key < LENGTHS[batch])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def calls(backend: GpuInterpreter) -> list[str]:
    return [step.target for made in backend.plans for step in made.plan.steps if isinstance(step, CallStep)]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score", [None, capped, sloped, capped_and_hidden])
@pytest.mark.parametrize("masked", [False, True])
def test_functions_of_places_stand_in_the_kernel(score: Score | None, masked: bool) -> None:
    mask = create_block_mask(window, 2, None, LENGTH, LENGTH, device="cpu") if masked else None
    inputs = [torch.randn(2, heads, LENGTH, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(query, key, value, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True)

    backend = GpuInterpreter(gpu_machine())
    with torch.no_grad():
        found = torch.compile(attend, backend=backend)(*inputs)
        expected = attend(*(x.double() for x in inputs))
    assert calls(backend) == []
    for one, other, most in zip(found, expected, (6e-3, 1e-4), strict=True):
        seen = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), seen)
        assert (one.double() - other)[seen].norm() < most * other[seen].norm()


def test_other_functions_of_scores_are_torchs() -> None:
    inputs = [torch.randn(1, 2, LENGTH, 64, dtype=torch.bfloat16) for _ in range(3)]
    backend = GpuInterpreter(gpu_machine())
    with torch.no_grad():
        torch.compile(lambda *x: flex_attention(*x, score_mod=squared), backend=backend)(*inputs)
    assert calls(backend)[-1] == "higher_order::flex_attention"
