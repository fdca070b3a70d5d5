"""Models as pipelines of stages give what they give on one rank: outputs, losses and gradients."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import dataclass, replace
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


def trains(
    rank: int, family: str, mesh: dict[str, int], kind: str, chunks: int, layers: int, evaluated: bool
) -> dict[str, Any]:
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
    if evaluated:
        with torch.no_grad():
            found, wanted = spread(**inputs), whole(**inputs)
        key = "last_hidden_state" if family == "bert" else "logits"
        errors["output"] = float((found[key] - wanted[key]).abs().max() / wanted[key].abs().max())
    dist.barrier()
    return {"errors": errors, "held": [name for name, _ in spread.model.named_parameters()]}


def check(results: list[Any]) -> None:
    held: set[str] = set()
    for result in results:
        assert isinstance(result, dict), result
        bad = {name: error for name, error in result["errors"].items() if error >= 2e-5}
        assert not bad
        held |= set(result["held"])
    assert all(set(result["held"]) < held for result in results)


def test_a_pipeline_of_two_stages() -> None:
    check(on_ranks(2, trains, "llama", {"pp": 2}, "", 1, 2, True))


def test_a_pipeline_of_tensor_parallel_stages() -> None:
    check(on_ranks(4, trains, "mixtral", {"pp": 2, "tp": 2}, "tp", 1, 2, False))


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
    check(on_ranks(count, trains, family, mesh, kind, chunks, max(mesh["pp"] * chunks, 2), True, seconds=900))


class Tied(nn.Module):
    """Layers of one width with a skip over all of them, whose first weight is also the last."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = y = self.layers[0](x)
        angles = torch.arange(8.0).cos()
        for layer in self.layers[1:]:
            y = torch.tanh(layer(y)) * angles
        return self.last(y + first)


def _mean_square(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output - targets).square().mean()


def trains_tied(rank: int, size: int, chunks: int, micro_batches: int, layers: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x, y = Tied(layers), torch.randn(16, 8), torch.randn(16, 8)
    whole = copy.deepcopy(model)
    plan = Plan(pipeline=Pipeline("pp", micro_batches, (x,), chunks))
    spread: Any = weft.distribute(model, {"pp": size}, plan)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, spread)]
    errors: dict[str, float] = {}
    for step in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = _mean_square(whole(x), y)
        expected.backward()
        loss = spread.step(lambda output, targets: _mean_square(output, targets), x, targets=y)
        errors |= {f"{name} {step}": value for name, value in errors_of(spread, whole, loss, expected).items()}
        norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.01)
        errors[f"norm {step}"] = float((spread.clip_grad_norm_(0.01) - norm).abs() / norm)
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        errors["output"] = float((spread(x) - whole(x)).abs().max())
    assert len(spread.programs) == 2, "one of steps, though each wrote a loss of its own, and one of evaluation"
    dist.barrier()
    return {"errors": errors, "held": [name for name, _ in spread.model.named_parameters()]}


@pytest.mark.parametrize(
    ("size", "chunks", "micro_batches", "layers"),
    [(2, 1, 1, 2), (2, 1, 8, 5), (2, 2, 4, 7), (4, 1, 2, 6), (4, 2, 8, 9)],
)
def test_tied_parameters_and_what_skips_stages(size: int, chunks: int, micro_batches: int, layers: int) -> None:
    check(on_ranks(size, trains_tied, size, chunks, micro_batches, layers))


@dataclass
class _Annealed:
    alpha: float = 1.0
    steps: int = 0


def _anneals(rank: int) -> tuple[list[float], int]:
    torch.manual_seed(0)
    model, x, annealed = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8), _Annealed()
    spread: Any = weft.distribute(model, {"pp": 2}, Plan(pipeline=Pipeline("pp", 2, (x,))))
    losses: list[float] = []
    for alpha in (1.0, 1.0, 0.25):
        annealed.alpha, annealed.steps = alpha, annealed.steps + 1
        losses.append(spread.step(lambda y: annealed.alpha * y.square().mean(), x).item())
    dist.barrier()
    return losses, len(spread.programs)


def test_a_loss_whose_settings_change_is_compiled_anew() -> None:
    for losses, programs in on_ranks(2, _anneals):
        assert losses[1] == losses[0] == pytest.approx(4 * losses[2])
        assert programs == 2


def _refused(rank: int) -> list[str]:
    def layers(count: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))

    x, told = torch.ones(8, 8), list[str]()
    for model, pipeline, batch in (
        (layers(2), Pipeline("tp", 2, (x,)), x),
        (layers(2), Pipeline("pp", 3, (x,)), x),
        (layers(2), Pipeline("pp", 2, (x,)), x[:5]),
        (layers(4), Pipeline("pp", 3, (x[:6],), 2), x),
        (layers(2), Pipeline("pp", 2, (x, x[:4])), x),
        (layers(2), Pipeline("pp", 0, (x,)), x),
        (nn.Tanh(), Pipeline("pp", 2, (x,)), x),
        (layers(2), Pipeline("pp", 2, (x,)), None),
        (layers(2), Pipeline("pp", 2, (x,)), torch.ones(8, 8, requires_grad=True)),
    ):
        try:
            spread: Any = weft.distribute(model, {"pp": 2}, Plan(pipeline=pipeline))
            if batch is None:
                spread.step(lambda y: y, x.detach())
            elif batch.requires_grad:
                spread(batch)
            else:
                spread.step(lambda y: y.mean(), batch)
        except (ShardingError, UnsupportedError) as error:
            told.append(str(error))
    dist.barrier()
    return told


def _freezes_later(rank: int) -> str:
    x = torch.ones(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    spread: Any = weft.distribute(model, {"pp": 2}, Plan(pipeline=Pipeline("pp", 2, (x,))))
    spread.requires_grad_(False)
    try:
        spread.step(lambda y: y.mean(), x)
    except UnsupportedError as error:
        return str(error)
    return "it went on"


def test_parameters_of_a_pipeline_that_are_frozen_later_are_refused() -> None:
    for told in on_ranks(2, _freezes_later):
        assert "is frozen now" in told


def test_what_is_no_pipeline_is_refused() -> None:
    for told in on_ranks(2, _refused):
        expected = (
            "no axis tp",
            "8 rows is not 3 micro-batches",
            "5 rows is not 2 micro-batches",
            "3 micro-batches are not a multiple of 2",
            "have 4, 8 rows",
            "no pipeline",
            "are not 2 stages",
            "not one number",
            "no gradients",
        )
        assert len(told) == len(expected), told
        for text, part in zip(told, expected, strict=True):
            assert part in text


def _dies(rank: int) -> Any:
    x = torch.ones(8, 8)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    spread: Any = weft.distribute(model, {"pp": 4}, Plan(pipeline=Pipeline("pp", 4, (x,))))
    spread.step(lambda y: y.mean(), x)
    dist.barrier()
    if rank == 1:
        time.sleep(0.2)
        os._exit(3)
    time.sleep(1)
    start = time.monotonic()
    try:
        spread.step(lambda y: y.mean(), x)
    except RankError as error:
        return error.ranks, time.monotonic() - start
    return "it went on"


def test_a_rank_that_dies_is_named_on_all_stages() -> None:
    results = on_ranks(4, _dies)
    assert results.pop(1) is None
    for result in results:
        assert isinstance(result, tuple), result
        assert result[0] == (1,)
        assert result[1] < 60


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.scale


def _changes_an_attribute(rank: int) -> list[float]:
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(4, 8)
    expected = model(x).detach()
    spread: Any = weft.distribute(model, {"pp": 2}, Plan(pipeline=Pipeline("pp", 2, (x,))))
    found: list[float] = []
    with torch.no_grad():
        for scale in (1.0, 2.0):
            model.scale = scale
            found.append(float((spread(x) - expected * scale).abs().max()))
    dist.barrier()
    return found


def test_an_attribute_that_changes_makes_other_stages() -> None:
    for found in on_ranks(2, _changes_an_attribute):
        assert max(found) < 1e-5
