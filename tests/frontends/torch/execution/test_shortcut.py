"""Calls that go past AOTAutograd's wrappers: where these do nothing, and nowhere else."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from weft.frontends.torch import backend
from weft.frontends.torch.execution import shortcut
from weft.frontends.torch.execution.shortcut import Shortcut

CALLS = 6


@pytest.fixture
def shortcuts(monkeypatch: pytest.MonkeyPatch) -> list[Shortcut]:
    """Those of the graphs that a test compiles."""
    made: list[Shortcut] = []

    class Noted(Shortcut):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(backend, "Shortcut", Noted)
    torch._dynamo.reset()
    return made


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="weft", options={"cache": False})


def taken(
    wrapped: Callable[[Callable[[list[Any]], Sequence[Any]]], Callable[..., Any]], *arguments: Any
) -> tuple[bool, list[Any]]:
    """Whether a graph that doubles its first argument is called directly, and what calls gave."""
    way = Shortcut()
    graph = way.watched(lambda given: [given[0] * 2])
    call = way.shortened(wrapped(graph))
    results = [call(*arguments)[0] for _ in range(CALLS)]
    return way.is_taken, results


def test_what_passes_everything_on_is_left_out() -> None:
    calls: list[int] = []

    def wrapped(graph: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            return graph(list(arguments))

        return call

    x = torch.ones(3)
    is_taken, results = taken(wrapped, x)
    assert is_taken and len(calls) == 1
    assert all(torch.equal(result, 2 * x) for result in results)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda graph: lambda *given: graph([given[0].detach()]),
        lambda graph: lambda *given: graph([*given, given[0]]),
        lambda graph: lambda *given: [graph(list(given))[0].view(-1)],
        lambda graph: lambda *given: [*graph(list(given)), given[0]],
    ],
    ids=["another argument", "more arguments", "another result", "more results"],
)
def test_what_changes_arguments_or_results_stays(wrapped: Any) -> None:
    x = torch.ones(3)
    is_taken, results = taken(wrapped, x)
    assert not is_taken and all(torch.equal(result, 2 * x) for result in results)


def test_what_changes_the_mode_for_gradients_stays() -> None:
    def wrapped(graph: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            results = graph(list(arguments))
            torch._C._set_grad_enabled(False)
            return results

        return call

    with torch.enable_grad():
        assert not taken(wrapped, torch.ones(3))[0]


def test_numbers_and_subclasses_stay() -> None:
    class Own(torch.Tensor):
        pass

    plain = lambda graph: lambda *given: graph(list(given))  # noqa: E731
    assert not taken(plain, torch.ones(3), 4)[0]
    assert not taken(plain, torch.ones(3).as_subclass(Own))[0]
    with torch.autocast("cpu"):
        assert not taken(plain, torch.ones(3))[0]


def test_no_gradients_are_recorded_on_the_short_way() -> None:
    modes: list[bool] = []
    way = Shortcut()
    graph = way.watched(lambda given: [modes.append(torch.is_grad_enabled()) or given[0] * 2])

    def wrapped(*arguments: Any) -> Any:
        with torch.no_grad():
            return graph(list(arguments))

    call = way.shortened(wrapped)
    x = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        results = [call(x)[0] for _ in range(CALLS)]
        assert torch.is_grad_enabled()
    assert way.is_taken and modes == [False] * CALLS and not any(result.requires_grad for result in results)


def test_nothing_of_a_call_is_kept() -> None:
    way = Shortcut()
    graph = way.watched(lambda given: [given[0] * 2])
    call = way.shortened(lambda *given: graph(list(given)))
    kept = weakref.ref(call(torch.ones(3))[0])
    assert way.is_taken and kept() is None


# -- as torch calls it ---------------------------------------------------------------------------------------------


def test_inference_is_called_directly_and_training_is_not(shortcuts: list[Shortcut]) -> None:
    module = nn.Linear(5, 7)
    run = compiled(module)
    x = torch.randn(3, 5)
    with torch.no_grad():
        for _ in range(CALLS):
            torch.testing.assert_close(run(x), module(x))
    assert [way.is_taken for way in shortcuts] == [True]
    for _ in range(CALLS):
        module.zero_grad()
        run(x).sum().backward()
        assert module.weight.grad is not None
        torch.testing.assert_close(module.weight.grad, x.sum(0).expand(7, 5))
    assert [way.is_taken for way in shortcuts] == [True, False]


def test_weights_may_be_replaced_moved_and_changed(shortcuts: list[Shortcut]) -> None:
    module = nn.Linear(5, 7)
    run = compiled(module)
    x = torch.randn(3, 5)
    with torch.no_grad():
        for number in range(4 * CALLS):
            match number % 4:
                case 0:
                    module.weight.mul_(1.5)
                case 1:
                    module.weight.data = torch.randn(7, 5)
                case 2:
                    module.weight = nn.Parameter(torch.randn(7, 5))
                case _:
                    module.bias.data.copy_(torch.randn(7))
            torch.testing.assert_close(run(x), module(x))
    assert shortcuts[0].is_taken


def test_another_type_of_weights_is_compiled_anew(shortcuts: list[Shortcut]) -> None:
    module = nn.Linear(5, 7)
    run = compiled(module)
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.float32):
            module.to(dtype)
            x = torch.randn(3, 5, dtype=dtype)
            for _ in range(CALLS):
                torch.testing.assert_close(run(x), module(x))


def test_a_cache_that_is_written_counts_as_changed(shortcuts: list[Shortcut]) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 5))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            rows = self.get_buffer("rows")
            rows.index_copy_(0, at, x)
            return rows.sum(0)

    module, expected = Cached(), Cached()
    run = compiled(module)
    with torch.no_grad():
        for number in range(CALLS):
            x, at = torch.randn(1, 5), torch.tensor([number % 4])
            if number == CALLS // 2:  # another one takes its place
                module.rows, expected.rows = torch.ones(4, 5), torch.ones(4, 5)
            before = module.rows._version
            torch.testing.assert_close(run(x, at), expected(x, at))
            torch.testing.assert_close(module.rows, expected.rows)
            assert module.rows._version > before
    assert shortcuts[0].is_taken


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + y, x),
        lambda x, y: (x + y, x.view(-1)),
        lambda x, y: (x + y).chunk(2),
        lambda x, y: x.add_(y),
        lambda x, y: (x.t_(), x + 1),
        lambda x, y: (x + y, y.add_(1).view(-1)),
    ],
)
def test_views_and_writes_are_as_in_eager(function: Any, shortcuts: list[Shortcut]) -> None:
    run = compiled(function)
    with torch.no_grad():
        for _ in range(CALLS):
            one, other = torch.randn(4, 4), torch.randn(4, 4)
            given = one.clone(), other.clone()
            expected, found = function(one, other), run(*given)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(given, (one, other))


def test_an_argument_that_is_given_twice(shortcuts: list[Shortcut]) -> None:
    function = lambda x, y: x.add_(1) + y  # noqa: E731
    run = compiled(function)
    with torch.no_grad():
        for number in range(CALLS):
            x, y = torch.randn(3), torch.randn(3)
            again = x.clone(), y.clone()
            same = number % 2
            expected = function(x, x) if same else function(x, y)
            torch.testing.assert_close(run(again[0], again[0] if same else again[1]), expected)
            torch.testing.assert_close(again[0], x)


def test_an_interrupt_before_any_line_leaves_gradients_on() -> None:
    lines, first = inspect.getsourcelines(shortcut._without_gradients)
    for line in range(first, first + len(lines) - 1):  # the last one restores, and no signal comes before it

        def trace(frame: Any, event: str, argument: Any, line: int = line) -> Any:
            if frame.f_code is not shortcut._without_gradients.__code__:
                return None
            if event == "line" and frame.f_lineno == line:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            shortcut._without_gradients(lambda arguments: arguments, [torch.ones(2)])
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        was_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert was_enabled, lines[line - first]
