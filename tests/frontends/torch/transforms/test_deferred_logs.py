"""Calls of loggers do not break graphs: what they say of constants is said behind the graph, in every call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.record import recording

log = logging.getLogger(__name__)


class Speaker(logging.Logger):
    """A logger with a method that speaks once, as those of libraries have."""

    @functools.cache  # noqa: B019  as libraries have it
    def warning_once(self, *args: Any) -> None:
        self.warning(*args)

    def warning_number(self, *args: Any) -> int:
        self.warning(*args)
        return 2


speaker = Speaker(__name__)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    Speaker.warning_once.cache_clear()


@pytest.fixture
def said() -> Generator[list[str]]:
    """What both loggers say."""
    found: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keeping()
    for each in (log, speaker):
        each.addHandler(handler)
    log.setLevel(logging.INFO)
    yield found
    for each in (log, speaker):
        each.removeHandler(handler)


def graphs(function: Callable[..., Any], *args: Any, calls: int = 1) -> int:
    """How many graphs a function becomes; it gives what it gives in eager."""
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    expected = function(*args)
    with recording() as records:
        for _ in range(calls):
            torch.testing.assert_close(compiled(*args), expected)
    return len(records)


def test_a_message_between_two_parts(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        log.info("rows: %d", x.shape[0])
        log.debug("nobody listens")
        return y.cos() + 1

    assert graphs(function, torch.rand(4), calls=3) == 1
    assert said == ["rows: 4"] * 4


def test_a_message_of_a_layer_that_is_called_in_a_model(said: list[str]) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            speaker.warning(f"a layer of {x.shape[-1]}")
            return x * 2

    model = nn.Sequential(Layer(), nn.Linear(4, 4), Layer())
    assert graphs(model, torch.rand(3, 4)) == 1
    assert said == ["a layer of 4"] * 4


def test_a_message_that_is_said_once(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        speaker.warning_once("no loss is chosen")
        return y.cos()

    compiled = torch.compile(function, backend="weft", options={"cache": False}, fullgraph=True)
    for _ in range(3):
        compiled(torch.rand(4))
    assert said == ["no loss is chosen"]


def test_messages_keep_their_order_around_a_break(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        log.info("first")
        y = x.sin()
        torch._dynamo.graph_break()
        log.info("second")
        y = y.cos()
        log.info("third")
        return y

    graphs(function, torch.rand(4))
    assert said == ["first", "second", "third"] * 2


def test_a_message_of_a_tensor_breaks_the_graph(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        log.info("%s", y)
        y.add_(1)
        return y.cos()

    assert graphs(function, torch.zeros(1)) == 2
    assert said == ["tensor([0.])"] * 2


def test_what_returns_something_is_called_in_its_place(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        if log.isEnabledFor(logging.INFO):
            y = y * speaker.warning_number("now")
        return y.cos()

    graphs(function, torch.rand(4))
    assert said == ["now"] * 2


def test_methods_that_the_user_has_torch_ignore_say_nothing(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        log.warning("ignored")
        return y.cos()

    with torch._dynamo.config.patch(ignore_logger_methods={log.warning}):
        assert graphs(function, torch.rand(4)) == 1
    assert said == ["ignored"]


def test_other_backends_break_graphs_as_before(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        log.info("here")
        return y.cos()

    assert torch._dynamo.explain(function)(torch.rand(4)).graph_count == 2
    assert said == ["here"]


def test_a_loss_behind_a_message_is_part_of_the_training_step(said: list[str]) -> None:
    weight = torch.rand(4, 4, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        y = x @ weight
        speaker.warning_once("no loss is chosen")
        return y.square().sum()

    x = torch.rand(3, 4)
    (expected,) = torch.autograd.grad(function(x), [weight])
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    with recording() as records:
        (found,) = torch.autograd.grad(compiled(x), [weight])
    torch.testing.assert_close(found, expected)
    assert [record.name for record in records] == ["forward", "backward"]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        log.info("in backward")
        return grad * 2


def test_messages_of_gradients_are_said_when_there_are_some(said: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = Doubled.apply(x)
        y.register_hook(lambda grad: (log.info("in a hook"), grad)[1])  # pyright: ignore[reportOptionalMemberAccess]
        return y.sin()

    y = torch.compile(function, backend="weft", options={"cache": False, "fallback": "quiet"})(
        torch.rand(4, requires_grad=True)
    )
    assert said == []
    y.sum().backward()
    assert sorted(said) == ["in a hook", "in backward"]
