"""Graphs that write to their arguments: right also where these lie in each other's memory other than when traced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import product

import pytest
import torch

import weft
from weft.frontends.torch.execution.overlaps import OverlapCheck

PLACES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "apart": lambda memory: (memory[:8], torch.ones(8)),
    "beside": lambda memory: (memory[:8], memory[8:16]),
    "by four": lambda memory: (memory[:8], memory[4:12]),
    "by two": lambda memory: (memory[:8], memory[2:10]),
    "the other before": lambda memory: (memory[3:11], memory[:8]),
    "columns": lambda memory: (memory[:16].view(8, 2)[:, 0], memory[:16].view(8, 2)[:, 1]),
}


def update(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2).add_(1)
    return a + b


@pytest.mark.parametrize(
    ("first", "dynamic"), [("apart", False), ("apart", True), ("by four", False), ("columns", False)]
)
def test_calls_are_right_however_arguments_lay_when_traced(first: str, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(update, backend="weft", dynamic=dynamic)
    for place in (first, *PLACES, first):
        memory = torch.randn(24)
        other = memory.clone()
        torch.testing.assert_close(compiled(*PLACES[place](memory)), update(*PLACES[place](other)))
        torch.testing.assert_close(memory, other)


def test_gradients_are_right_too() -> None:
    torch.compiler.reset()
    compiled = torch.compile(update, backend="weft")
    for place in ("apart", "by two", "apart"):
        gradients: list[torch.Tensor] = []
        for function in (compiled, update):
            leaf = torch.arange(24.0).requires_grad_()
            function(*PLACES[place](leaf * 1)).square().sum().backward()
            assert leaf.grad is not None
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    compiled = torch.compile(update, backend="weft")
    with caplog.at_level(logging.WARNING, logger="weft"):
        for place in ("apart", "apart", "by two", "by four"):
            compiled(*PLACES[place](torch.randn(24)))
    said = [record for record in caplog.records if "share memory otherwise" in record.message]
    assert len(said) == 1


def test_addresses_tell_what_comparing_every_pair_tells() -> None:
    """Over many calls: of many arguments only those that moved are compared."""
    torch.manual_seed(0)
    memory = torch.zeros(4000)
    traced = [memory[100 * n : 100 * n + 100] for n in range(40)]
    check = OverlapCheck(traced, (3, 17))
    arguments = list(traced)
    for _ in range(300):
        place, start = (int(torch.randint(bound, ())) for bound in (40, 3900))
        moved = [*arguments[:place], memory[start : start + 100], *arguments[place + 1 :]]
        pairs = product((3, 17), range(40))
        overlap = any(n != k and abs(moved[n].data_ptr() - moved[k].data_ptr()) < 400 for n, k in pairs)
        assert check.holds(moved) is not overlap
        if not overlap:
            arguments = moved


def test_what_may_not_run_uncompiled_is_refused() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(b)
        return a * 2

    run = torch.compile(function, backend="weft", options={"cache": False, "fallback": "error"})
    run(torch.ones(4), torch.ones(4))
    memory = torch.arange(5.0)
    with pytest.raises(weft.WeftError, match="share memory otherwise"):
        run(memory[1:], memory[:-1])
