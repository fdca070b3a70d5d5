"""Weights are told from others, and from themselves at other times, in one native call."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from weft.frontends.torch.execution import weight_watch
from weft.frontends.torch.execution.weight_watch import watch_weights

COUNT = 12


def _weights() -> list[torch.Tensor]:
    return [nn.Parameter(torch.randn(4, 4)) if n % 2 else torch.randn(4, 4) for n in range(COUNT)]


def _rebind(weights: list[torch.Tensor]) -> None:
    weights[7].data = torch.randn(4, 4)  # torch counts no change


def _write(weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        weights[7].mul_(2)


def _replace(weights: list[torch.Tensor]) -> None:
    weights[7] = weights[7].detach()  # the same memory, another object


def _swap(weights: list[torch.Tensor]) -> None:
    weights[7], weights[8] = weights[8], weights[7]


def _shorten(weights: list[torch.Tensor]) -> None:
    del weights[7]


@pytest.mark.parametrize("change", [_rebind, _write, _replace, _swap, _shorten])
def test_what_has_changed_is_seen(change: Callable[[list[torch.Tensor]], None]) -> None:
    weights = _weights()
    unchanged = watch_weights(weights)
    assert unchanged is not None
    assert unchanged(list(weights)) and not unchanged(tuple(weights))
    change(weights)
    assert not unchanged(weights)


def test_weights_that_are_gone_are_never_those_that_came_to_their_place() -> None:
    weights = _weights()
    unchanged = watch_weights(weights)
    assert unchanged is not None
    rest = weights[1:]
    weights.clear()
    gc.collect()
    assert not unchanged([torch.randn(4, 4), *rest])


def test_few_weights_and_those_with_a_meaning_of_their_own_are_asked_one_by_one() -> None:
    class Own(torch.Tensor):
        pass

    assert watch_weights(_weights()[:3]) is None
    assert watch_weights([*_weights(), torch.randn(3).as_subclass(Own)]) is None


def test_inference_tensors_whose_changes_nobody_counts_are_not_watched() -> None:
    with torch.inference_mode():
        made = torch.randn(4, 4)
    assert watch_weights([*_weights(), made]) is None


@pytest.mark.parametrize("native", [True, False], ids=["natively", "by asking each"])
def test_frozen_models_see_their_weights_change(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(weight_watch, "_differences", lambda: None)
    torch.compiler.reset()
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    compiled = torch.compile(model, backend="weft", options={"freeze": True})
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        weight = model[3].weight
        for change in (
            lambda: weight.mul_(2),
            lambda: setattr(weight, "data", torch.randn(8, 8)),
            lambda: weight.data.copy_(torch.randn(8, 8)),
            lambda: setattr(model[3], "weight", nn.Parameter(torch.randn(8, 8))),
        ):
            change()
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
