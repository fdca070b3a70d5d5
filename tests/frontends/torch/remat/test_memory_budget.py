"""Memory budgets of training steps: gradients stay, peaks fall with the budget and are what was predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft.config import Config, MemoryBudget
from weft.errors import WeftError
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak


class Deep(nn.Module):
    """Layers whose activations are much larger than their weights."""

    def __init__(self, layers: int = 8) -> None:
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


def peak_within(budget: float, module: nn.Module, x: torch.Tensor, exact: list[torch.Tensor]) -> int:
    """The most bytes that a step allocates at once, which has the exact gradients and the peak that was predicted."""
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="weft", options={"memory_budget": budget, "fallback": "error"})
    with recording() as records:
        found = gradients(module, compiled, x)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    (predicted,) = (record.peak for record in records if record.peak is not None)
    module.zero_grad()
    peak = allocated_peak(lambda: compiled(x).backward())
    assert abs(peak - predicted) <= 0.01 * predicted
    return peak


def test_a_step_stays_within_its_budget_and_takes_what_was_predicted() -> None:
    torch.manual_seed(0)
    module, x = Deep(), torch.randn(1024, 32)
    exact = gradients(module, module, x)
    whole, less = (peak_within(budget, module, x, exact) for budget in (1.0, 0.7))
    assert less <= 0.7 * whole


@pytest.mark.slow
def test_peaks_never_rise_when_a_budget_falls() -> None:
    torch.manual_seed(0)
    module, x = Deep(), torch.randn(1024, 32)
    exact = gradients(module, module, x)
    peaks = [peak_within(budget / 10, module, x, exact) for budget in range(10, 2, -1)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.6 * peaks[0]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("0.5", 500), ("0", 0), ("1", 1000), ("5e-02", 50), ("2KiB", 2048), ("1.5 MB", 1_500_000), ("70B", 70)],
)
def test_a_budget_is_a_share_or_bytes(text: str, limit: int) -> None:
    assert MemoryBudget.read(text).limit(1000) == limit
    assert Config(memory_budget=text).memory_budget == text


def test_a_small_share_may_be_a_float() -> None:
    share: Any = 0.00005  # which Python writes as 5e-05
    assert MemoryBudget.read(Config(memory_budget=share).memory_budget).limit(10**6) == 50


@pytest.mark.parametrize("text", ["1.5", "-1", "2GX", "half", True])
def test_other_budgets_are_refused(text: Any) -> None:
    with pytest.raises(WeftError, match="memory_budget"):
        Config(memory_budget=text)


def test_the_exact_solver_stays_within_the_budget() -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed: pip install weft[solver]")
    torch.manual_seed(0)
    module, x = Deep(3), torch.randn(256, 32)
    exact = gradients(module, module, x)
    torch._dynamo.reset()
    options = {"memory_budget": 0.8, "memory_budget_solver": "exact", "fallback": "error"}
    found = gradients(module, torch.compile(module, backend="weft", options=options), x)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)


class Dropping(nn.Module):
    """Checkpointed layers with dropout, among others."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.up, self.down = Deep(4), nn.Linear(32, 128), nn.Linear(128, 32)

    def layer(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.dropout(F.gelu(self.up(x)), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + checkpoint(self.layer, x, use_reentrant=False)
        return self.deep(x)


@pytest.mark.parametrize("solver", ["min_cut", "exact"])
def test_checkpoints_draw_the_same_numbers_again_within_a_budget(solver: str) -> None:
    if solver == "exact":
        pytest.importorskip("scipy")
    torch.manual_seed(0)
    module, x = Dropping(), torch.randn(256, 32)
    found: list[list[torch.Tensor]] = []
    for budget in ("", "0.5"):
        torch._dynamo.reset()
        options: Any = {"fallback": "quiet", "memory_budget": budget, "memory_budget_solver": solver}
        compiled = torch.compile(module, backend="weft", options=options)
        torch.manual_seed(1)
        found.append(gradients(module, compiled, x))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_made_of_symbolic_sizes_are_computed_again() -> None:
    """A batch norm divides by how many elements it counts, a float that the forward graph cannot hand on."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
    options = {"memory_budget": 0.5, "fallback": "error"}
    compiled = torch.compile(module, backend="weft", dynamic=True, options=options)
    for shape in ((2, 3, 9, 8), (3, 3, 7, 5)):
        x = torch.randn(shape)
        found = gradients(module, lambda x: compiled(x).square().mean((2, 3)).sum(), x)
        exact = gradients(module, lambda x: module(x).square().mean((2, 3)).sum(), x)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
