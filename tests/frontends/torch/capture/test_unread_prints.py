"""AOTAutograd's graphs become text only where a log of torch's takes it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import fx
from torch._logging import _internal as logs
from torch.fx import graph_module

from weft.frontends.torch.capture.unread_prints import without_unread_prints


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are written as text."""
    found: list[Any] = []
    write = graph_module._print_readable

    def noting(module: Any, *args: Any, **kwargs: Any) -> str:
        found.append(module)
        return write(module, *args, **kwargs)

    monkeypatch.setattr(graph_module, "_print_readable", noting)
    return found


def step() -> None:
    torch.compiler.reset()
    x = torch.rand(4, requires_grad=True)
    torch.compile(lambda x: (x.sin() * x).sum(), backend="weft", options={"cache": False})(x).backward()


def test_nothing_is_written_where_nobody_reads(written: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.trace_log, "handlers", [])  # those of pytest
    step()
    assert not written


def test_logs_of_torch_have_the_graphs(written: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    logs.set_logs(aot_graphs=True)
    try:
        with caplog.at_level(logging.INFO):
            step()
    finally:
        logs.set_logs()
    assert written


def test_other_backends_have_the_graphs(written: list[Any]) -> None:
    step()
    torch.compiler.reset()
    x = torch.rand(4, requires_grad=True)
    torch.compile(lambda x: (x.sin() * x).sum(), backend="aot_eager")(x).backward()
    assert written


def test_what_is_printed_for_the_user_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    with without_unread_prints():
        module.print_readable()
    assert "x + 1" in capsys.readouterr().out
    assert "x + 1" in module.print_readable(print_output=False)


def test_traces_have_the_graphs(written: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.trace_log, "handlers", [logging.NullHandler()])
    step()
    assert written
