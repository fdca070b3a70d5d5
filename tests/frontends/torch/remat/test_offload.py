"""Values that wait for the backward in the host's memory: gradients stay, and only what is the graph's own moves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import weft.func
from weft.backends.target import CostFacts
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.torch.remat import memory_budget
from weft.passes.remat import offload_choice
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak

if not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"):
    pytest.skip("this torch has no policy that offloads", allow_module_level=True)

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def products_on_host(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_CPU_OFFLOAD if operator in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.sin(self.up(x)))


class Deep(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        contexts = partial(create_selective_checkpoint_contexts, products_on_host)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
        return x.pow(2).mean()


class Plain(Deep):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def gradients(call: Callable[..., Any], module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    call(x).backward()
    return [each.grad.clone() for each in module.parameters() if each.grad is not None]


def transfers(records: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for claim in (claim for record in records for claim in record.claims if claim.op.startswith("weft::")):
        found[claim.op] = found.get(claim.op, 0) + claim.uses
    return found


def test_torchs_policy_for_offloading_is_followed() -> None:
    torch._dynamo.reset()
    module, x = Deep(), torch.randn(32, 16)
    compiled = torch.compile(module, backend="weft", options={"fallback": "error"})
    with recording() as records:
        found = gradients(compiled, module, x)
    counts = transfers(records)
    assert (
        counts["weft::offload"] == counts["weft::offloaded"] == counts["weft::reload"] == counts["weft::reloaded"] > 2
    )
    for one, other in zip(found, gradients(module, module, x), strict=True):
        torch.testing.assert_close(one, other)


def test_copies_count_in_the_peak_that_is_predicted() -> None:
    torch._dynamo.reset()
    module, x = Deep(), torch.randn(512, 16)
    compiled = torch.compile(module, backend="weft", options={"fallback": "error", "memory_budget": 1.0})
    with recording() as records:
        found = gradients(compiled, module, x)
    assert transfers(records)["weft::offload"]
    for one, other in zip(found, gradients(module, module, x), strict=True):
        torch.testing.assert_close(one, other)
    (predicted,) = (record.peak for record in records if record.peak is not None)
    module.zero_grad()
    assert abs(allocated_peak(lambda: compiled(x).backward()) - predicted) <= 0.01 * predicted


def test_what_the_caller_holds_stays_where_it_is() -> None:
    torch._dynamo.reset()

    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_CPU_OFFLOAD

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = checkpoint(
            lambda x: (x @ w).exp(),
            x,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, policy),
        )
        return y, y.sin().sum()

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    with recording() as records:
        y, loss = torch.compile(f, backend="weft", options={"fallback": "error"})(x, w)
        found = torch.autograd.grad(loss + y.sum(), (x, w))
    shapes = [claim.types for record in records for claim in record.claims if claim.op == "weft::offload"]
    assert len(shapes) <= 1, "exp is a result, and x and w are arguments"
    y, loss = f(x, w)
    for one, other in zip(found, torch.autograd.grad(loss + y.sum(), (x, w)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_budget_offloads_where_that_is_quicker(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(offload_choice, "LEAST_BYTES", 1)
    monkeypatch.setattr(offload_choice, "_SECONDS_A_COPY", 0.0)
    costs = CostFacts(bandwidth=1e6, host_bandwidth=1e9)  # a device that computes slowly
    monkeypatch.setattr(memory_budget, "_costs_on_gpu", lambda joint, config: costs)
    monkeypatch.setattr(memory_budget, "predict_peak", lambda *given: None)
    module, x = Plain(), torch.randn(32, 16)
    options = {"fallback": "error", "memory_budget": 0.4, "offload": True}
    compiled = torch.compile(module, backend="weft", options=options, dynamic=dynamic)
    with recording() as records:
        found = gradients(compiled, module, x)
    assert transfers(records)["weft::offload"] >= 2
    for one, other in zip(found, gradients(module, module, x), strict=True):
        torch.testing.assert_close(one, other)


def test_offloading_without_a_budget_is_refused() -> None:
    with pytest.raises(WeftError, match="memory budget"):
        Config(offload=True)


@pytest.mark.parametrize("words", [{"offload": "dots"}, {"save": "dots", "offload": "hidden"}])
def test_checkpoints_by_name_in_a_compiled_function(words: dict[str, str]) -> None:
    torch._dynamo.reset()

    def layer(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hidden = weft.func.checkpoint_name(torch.tanh(x @ w), "hidden")
        return x + torch.sin(hidden @ w.mT)

    marked = weft.func.checkpoint(layer, **words)  # pyright: ignore[reportArgumentType]

    def loss(apply: Callable[..., torch.Tensor], w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = apply(w, x)
        return x.pow(2).mean()

    w, x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True), torch.randn(32, 8, dtype=torch.float64)
    compiled = torch.compile(partial(loss, marked), backend="weft", fullgraph=True, options={"fallback": "error"})
    with recording() as records:
        (found,) = torch.autograd.grad(compiled(w, x), w)
    torch.testing.assert_close(found, torch.autograd.grad(loss(layer, w, x), w)[0])
    assert transfers(records)["weft::offload"] >= 3


def test_values_that_do_not_lie_row_by_row_come_back_as_they_were() -> None:
    torch._dynamo.reset()

    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_CPU_OFFLOAD

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.conv2d(x, w, padding=1).exp()
            return y.transpose(1, 3).sin().mT.cos()

        contexts = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(inner, x, use_reentrant=False, context_fn=contexts).pow(2).mean()

    x, w = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64) / 3
    x, w = (each.to(memory_format=torch.channels_last).requires_grad_() for each in (x, w))
    with recording() as records:
        found = torch.autograd.grad(torch.compile(f, backend="weft", options={"fallback": "error"})(x, w), (x, w))
    assert transfers(records)["weft::offload"]
    for one, other in zip(found, torch.autograd.grad(f(x, w), (x, w)), strict=True):
        torch.testing.assert_close(one, other)
