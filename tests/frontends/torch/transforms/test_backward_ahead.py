"""Backward graphs that are compiled with the forward ones: when they are, and that gradients stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.frontends.torch import backend, caching
from weft.frontends.torch.transforms.backward_ahead import compiling_ahead, is_ahead
from weft.runtime.record import recording

ROWS, WIDTH, CLASSES = 24, 17, 31


@pytest.fixture
def as_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs on a processor are handed over when those on a GPU are."""
    monkeypatch.setattr(backend, "compiling_ahead", lambda device: compiling_ahead("cuda"))


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options={"cache": False, "fallback": "error", **options})


def both(hidden: Tensor, weight: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits, wanted), logits


def values(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = torch.randn(rows, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
    return hidden, weight, torch.randint(0, CLASSES, (rows,))


def check(results: tuple[Tensor, Tensor], given: tuple[Tensor, Tensor, Tensor], place: int, **named: Any) -> None:
    found = torch.autograd.grad(results[place].sum(), given[:2], **named)
    hidden, weight = (each.detach().double().requires_grad_() for each in given[:2])
    expected = torch.autograd.grad(both(hidden, weight, given[2])[place].sum(), (hidden, weight))
    for each, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(each.double(), exact, rtol=1e-5, atol=1e-6)


def names(records: Any) -> list[str]:
    return [record.name for record in records]


@pytest.mark.usefixtures("as_for_a_gpu")
def test_a_loss_is_differentiated_by_what_the_first_call_has_compiled() -> None:
    given = values()
    with recording() as records:
        results = compiled(both)(*given)
        assert names(records) == ["forward", "backward"]
        check(results, given, 0, retain_graph=True)
        check(results, given, 0)
    assert names(records) == ["forward", "backward"]
    assert records[1].plan is not None and len(records[1].plan.inputs) == 6, "no gradient of the logits"


@pytest.mark.usefixtures("as_for_a_gpu")
def test_a_graph_is_retained_where_torch_did_not_look_for_donated_buffers() -> None:
    settings: Any = torch._functorch.config
    given = values()
    with settings.patch(donated_buffer=False):
        results = compiled(both)(*given)
    check(results, given, 0, retain_graph=True)
    check(results, given, 0)


@pytest.mark.usefixtures("as_for_a_gpu")
def test_another_result_is_differentiated_by_a_program_of_its_own() -> None:
    given = values()
    with recording() as records:
        call = compiled(both)
        check(call(*given), given, 1)
        check(call(*given), given, 0)
    assert names(records) == ["forward", "backward", "backward"]


@pytest.mark.usefixtures("as_for_a_gpu")
def test_results_without_a_loss_wait_for_who_asks() -> None:
    given = values()
    with recording() as records:
        logits = compiled(lambda *them: both(*them)[1])(*given)
        assert names(records) == ["forward"]
        check((logits, logits), given, 1)
    assert names(records) == ["forward", "backward"]


def test_a_processor_compiles_what_is_asked_for() -> None:
    given = values()
    with recording() as records:
        loss, _ = compiled(both)(*given)
        assert names(records) == ["forward"]
        loss.backward()
    assert names(records) == ["forward", "backward"]


@pytest.mark.usefixtures("as_for_a_gpu")
def test_sizes_that_change() -> None:
    call = compiled(both)
    for rows in (24, 31, 77):
        given = values(rows)
        check(call(*given), given, 0)
        check(call(*given), given, 1)


@pytest.mark.usefixtures("as_for_a_gpu")
def test_what_goes_wrong_is_told_to_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    import_graph = backend.import_graph

    def refusing(module: Any, name: str, *rest: Any) -> Any:
        if name == "backward":
            raise WeftError("not today")
        return import_graph(module, name, *rest)

    monkeypatch.setattr(backend, "import_graph", refusing)
    given = values()
    loss, _ = compiled(both)(*given)
    with pytest.raises(WeftError, match="not today"):
        loss.backward()


@pytest.mark.usefixtures("as_for_a_gpu")
def test_no_other_process_waits_for_a_gradient_that_nobody_may_ask_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    led: list[str] = []
    lead = caching.lead
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching, "lead", lambda key, load: led.append(key) or lead(key, load))
    with recording() as records:
        compiled(both, cache=True)(*values())
    assert names(records) == ["forward", "backward"]
    assert len(led) == 1


def test_ranks_compile_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with compiling_ahead("cuda"):
        assert not is_ahead()


@pytest.mark.usefixtures("as_for_a_gpu")
def test_steps_of_a_model_go_down_as_in_eager() -> None:
    def train(run: Any, model: nn.Module, x: Tensor) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[float] = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = run(x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).square().mean()

    x = torch.randn(12, 8)
    torch.manual_seed(0)
    eager = Model()
    mine = Model()
    mine.load_state_dict(eager.state_dict())
    expected = train(eager, eager, x)
    assert train(compiled(mine), mine, x) == pytest.approx(expected, rel=1e-4)
