"""Compile times: counted inside the backend, in processes of their own, and never for a graph that was not compiled."""

from __future__ import annotations

import pytest
import torch

from weft.errors import WeftError
from weft.testing import compile_times
from weft.testing.bench.compile_clock import compile_clock
from weft.testing.compile_times import compile_here, measure_model


def test_the_clock_counts_forward_and_backward() -> None:
    linear = torch.nn.Linear(4, 3)
    compiled = torch.compile(lambda x: linear(x).relu().sum(), backend="weft", options={"cache": False})
    with compile_clock() as clock:
        compiled(torch.randn(5, 4)).backward()
    assert clock.graphs == 2
    assert clock.seconds > 0
    before = clock.seconds
    torch.compile(lambda x: x.exp(), backend="weft")(torch.randn(3))
    assert clock.seconds == before, "the clock stopped with its block"


@pytest.mark.slow
def test_a_cold_and_a_warm_compilation_in_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    said: list[str] = []
    result = measure_model("resnet", threads=1, progress=said.append)
    assert result.ok, result.trouble
    assert said == ["weft compiles", "filling the disk cache", "weft_warm compiles"]
    cold, warm = result.backend("weft"), result.backend("weft_warm")
    assert cold is not None and warm is not None and warm < cold
    assert result.backend("inductor") is None
    assert result.figures()["graphs"] == {"weft": 1, "weft_warm": 1}


def test_a_failing_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_times, "cpp_compiler", lambda: None)
    result = measure_model("no_such_model")
    assert not result.ok
    assert "no model is called no_such_model" in result.failures["weft"]


def test_a_graph_left_to_torch_has_no_compile_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.frontends.torch import backend

    def refuse(*_: object) -> None:
        raise WeftError("not today")

    monkeypatch.setattr(backend, "import_graph", refuse)
    monkeypatch.setenv("WEFT_CACHE", "0")
    torch.compiler.reset()
    with pytest.raises(WeftError, match="left a graph to torch"):
        compile_here("resnet", "weft", 0)
