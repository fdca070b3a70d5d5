"""Models as pipelines of stages give what they give on one rank: outputs, losses and gradients."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import weft
from tests.frontends.torch.distributed.ranks import on_ranks
from tests.frontends.torch.distributed.test_distribute import plan_for
from weft.errors import RankError, ShardingError, UnsupportedError
from weft.frontends.torch.distributed.capture_model import capture_model
from weft.frontends.torch.distributed.hints import Pipeline, Plan
from weft.testing.models import SMALL


def deep(family: str, layers: int) -> tuple[nn.Module, dict[str, torch.Tensor], Any]:
    """A small model of so many layers, eight rows of inputs, and its loss."""
    case = SMALL[family]
    model: Any = case.build()
    model.config.num_hidden_layers = layers
    torch.manual_seed(0)
    model = type(model)(model.config)
    rows = {key: torch.cat([value, value.flip(0)] * 4)[:8] for key, value in case.inputs(0).items()}
    return model.eval() if family == "bert" else model, rows, case.loss


def errors_of(spread: Any, whole: nn.Module, loss: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    errors = {"loss": abs(loss.item() - expected.item()) / abs(expected.item())}
    wanted = dict(whole.named_parameters())
    scale = max(float(p.grad.abs().max()) for p in wanted.values() if p.grad is not None)
    for name, parameter in spread.model.named_parameters():
        expected_gradient = wanted[name].grad
        if expected_gradient is None:
            continue
        gradient = parameter.grad
        assert gradient is not None, name
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        errors[name] = float((gradient - expected_gradient).abs().max()) / scale
    return errors


def trains(rank: int, family: str, mesh: dict[str, int], kind: str, chunks: int, layers: int) -> dict[str, Any]:
    """How far a step and an evaluation are from those of the whole model, and which parameters are here."""
    model, inputs, loss_of = deep(family, layers)
    whole, micro_batches = copy.deepcopy(model), 4
    expected = torch.zeros(())
    for n in range(micro_batches):  # what is not linear in the batch is so of micro-batches
        part = {key: value.chunk(micro_batches)[n] for key, value in inputs.items()}
        loss = loss_of(whole(**part)) / micro_batches
        loss.backward()
        expected += loss.detach()
    plan = plan_for(family, kind, model) if kind else Plan()
    plan = replace(plan, pipeline=Pipeline("pp", micro_batches, inputs, chunks))
    spread: Any = weft.distribute(model, mesh, plan)
    errors = errors_of(spread, whole, spread.step(loss_of, **inputs), expected)
    with torch.no_grad():
        found, wanted = spread(**inputs), whole(**inputs)
    key = "last_hidden_state" if family == "bert" else "logits"
    errors["output"] = float((found[key] - wanted[key]).abs().max() / wanted[key].abs().max())
    dist.barrier()
    return {"errors": errors, "held": [name for name, _ in spread.model.named_parameters()]}


@pytest.fixture(scope="module", autouse=True)
def traced_before() -> None:
    """What tracing imports is imported once, before ranks are forked."""
    for family in ("llama", "mixtral", "bert"):
        deep(family, 1)
    capture_model(nn.Linear(2, 2), (torch.ones(1, 2),), {})


def check(results: list[Any]) -> None:
    held: set[str] = set()
    for result in results:
        assert isinstance(result, dict), result
        bad = {name: error for name, error in result["errors"].items() if error >= 2e-5}
        assert not bad
        held |= set(result["held"])
    assert all(set(result["held"]) < held for result in results)


def test_a_pipeline_of_two_stages() -> None:
    check(on_ranks(2, trains, "llama", {"pp": 2}, "", 1, 2))


def test_interleaved_stages() -> None:
    check(on_ranks(2, trains, "bert", {"pp": 2}, "", 2, 4))


def test_a_pipeline_of_tensor_parallel_stages() -> None:
    check(on_ranks(4, trains, "mixtral", {"pp": 2, "tp": 2}, "tp", 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral", "bert"])
@pytest.mark.parametrize(
    ("mesh", "kind", "chunks"),
    [
        ({"pp": 4}, "", 1),
        ({"pp": 2}, "", 2),
        ({"pp": 4}, "", 2),
        ({"dp": 2, "pp": 2}, "dp", 1),
        ({"pp": 2, "dp": 2}, "fsdp", 2),
        ({"pp": 2, "tp": 2}, "sp", 1),
        ({"dp": 2, "pp": 2, "tp": 2}, "dp_tp", 1),
        ({"pp": 2, "dp": 2, "tp": 2}, "fsdp_sp", 2),
    ],
)
def test_every_mixture(family: str, mesh: dict[str, int], kind: str, chunks: int) -> None:
    count = 1
    for size in mesh.values():
        count *= size
    check(on_ranks(count, trains, family, mesh, kind, chunks, 2 * max(mesh["pp"] * chunks, 2) // 2, seconds=600))
