"""Memory budgets of training steps: gradients stay, peaks fall with the budget and are what was predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weft.config import Config, MemoryBudget
from weft.errors import WeftError
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak


class Deep(nn.Module):
    """Layers whose activations are much larger than their weights."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.softmax(layer(torch.tanh(x)), -1) * torch.sin(x)
        return x.pow(2).mean()


def gradients(module: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    call(x).backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def test_peaks_fall_with_the_budget_and_are_what_was_predicted() -> None:
    torch.manual_seed(0)
    module, x = Deep(), torch.randn(4096, 32)
    exact = gradients(module, module, x)
    peaks: list[int] = []
    for budget in (1.0, 0.7, 0.4):
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="weft", options={"memory_budget": budget, "fallback": "error"})
        with recording() as records:
            result = gradients(module, compiled, x)
        for one, other in zip(result, exact, strict=True):
            torch.testing.assert_close(one, other)
        module.zero_grad()
        predicted = next(record.peak for record in records if record.peak is not None)
        peaks.append(allocated_peak(lambda call=compiled: call(x).backward()))
        assert abs(peaks[-1] - predicted) <= 0.01 * predicted
    assert peaks[0] > peaks[1] > peaks[2]
    assert peaks[1] <= 0.7 * peaks[0]


@pytest.mark.parametrize(
    ("text", "limit"), [("0.5", 500), ("0", 0), ("1", 1000), ("2KiB", 2048), ("1.5 MB", 1_500_000), ("70B", 70)]
)
def test_a_budget_is_a_share_or_bytes(text: str, limit: int) -> None:
    assert MemoryBudget.read(text).limit(1000) == limit
    assert Config(memory_budget=text).memory_budget == text


@pytest.mark.parametrize("text", ["1.5", "-1", "2GX", "half", True])
def test_other_budgets_are_refused(text: Any) -> None:
    with pytest.raises(WeftError, match="memory_budget"):
        Config(memory_budget=text)
