"""Programs are kept by what they compute: functions written at the call are the same at every call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.diagnostics import forget
from weft.frontends.torch.distributed.function_contents import content_of
from weft.frontends.torch.distributed.kept_programs import KeptPrograms, described_function

FACTOR = 2.0


def scaled(factor: float, *, power: float = 2.0) -> Callable[..., Any]:
    return lambda y: factor * y.pow(power).mean() * FACTOR


def other(factor: float) -> Callable[..., Any]:
    return lambda y: factor * y.abs().mean()


def nested(values: list[float]) -> Callable[..., Any]:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y.mean() * values[0]

    return lambda y: inner(y) + 1


class WithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(3))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.weights).mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: scaled(1.5),
        lambda: nested([1.0, 2.0]),
        lambda: functools.partial(F.cross_entropy, label_smoothing=0.1),
        lambda: nn.CrossEntropyLoss(ignore_index=0),
        lambda: nn.MSELoss().forward,
        lambda: torch.mean,
        lambda: None,
    ],
)
def test_functions_made_again_are_the_same(make: Callable[[], Any]) -> None:
    first, second = content_of(make()), content_of(make())
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (scaled(1.5), scaled(1.25)),
        (scaled(1.5), scaled(1.5, power=3.0)),
        (scaled(1.5), other(1.5)),
        (scaled(1), scaled(True)),
        (nested([1.0]), nested([3.0])),
        (functools.partial(F.cross_entropy, label_smoothing=0.1), functools.partial(F.cross_entropy)),
        (nn.CrossEntropyLoss(ignore_index=0), nn.CrossEntropyLoss()),
        (nn.CrossEntropyLoss(), nn.NLLLoss()),
        (WithWeights(), WithWeights()),
        (torch.ones(2), torch.ones(2)),
    ],
)
def test_functions_that_compute_something_else_are_not(one: Any, two: Any) -> None:
    assert content_of(one) != content_of(two)


def test_a_global_that_changes_makes_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    function = scaled(1.5)
    before = content_of(function)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert content_of(function) != before


def test_functions_are_told_apart_across_ranks() -> None:
    assert described_function(scaled(1.0)) == described_function(scaled(1.0))
    assert described_function(scaled(1.0)) != described_function(other(1.0))
    assert described_function(nn.MSELoss()) == "MSELoss"
    assert described_function(functools.partial(F.mse_loss)) == "partial"


def test_the_longest_unused_program_goes(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    kept, made = KeptPrograms[int](most=2), list[str]()

    def get(name: str) -> int:
        return kept.get(name, lambda: made.append(name) or len(made))

    with caplog.at_level(logging.WARNING, "weft.cache"):
        for name in ("a", "b", "a", "c", "a", "b"):
            get(name)
    assert made == ["a", "b", "c", "b"]
    assert len(kept) == 2
    assert "targets=" in caplog.text


def test_a_program_that_nothing_tells_of_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    kept = KeptPrograms[int]()
    numbers = iter(range(9))
    unknown = content_of(lambda y: y * next(numbers))
    with caplog.at_level(logging.WARNING, "weft.cache"):
        assert [kept.get(unknown, lambda: next(numbers)) for _ in range(3)] == [0, 1, 2]
    assert len(kept) == 0
    assert "compiled anew at every call" in caplog.text
    assert "iterator" in caplog.text
