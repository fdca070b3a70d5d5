"""Backward graphs are written as Python only where torch runs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from weft.errors import UnsupportedError
from weft.frontends.torch import backend
from weft.frontends.torch.remat.unwritten_modules import lazy, writing_later

WEIGHT = torch.rand(4, 4, requires_grad=True)


def function(x: Tensor) -> Tensor:
    first, second = (x @ WEIGHT).sin().split(2, 1)
    return (first * second).sum()


def gradient(called: Any, x: Tensor) -> Tensor:
    return torch.autograd.grad(called(x), [WEIGHT])[0]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def test_a_backward_graph_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []
    write = fx.GraphModule._recompile_submodules  # what writing a module ends with

    def noting(self: Any) -> Any:
        written.append([node.name for node in self.graph.nodes if node.op == "placeholder"])
        return write(self)

    monkeypatch.setattr(fx.GraphModule, "_recompile_submodules", noting)
    x = torch.rand(3, 4)
    compiled = torch.compile(function, backend="weft", options={"cache": False})
    torch.testing.assert_close(gradient(compiled, x), gradient(function, x))
    assert not [names for names in written if any("tangents" in name for name in names)]


def test_torch_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("not today")

    monkeypatch.setattr(backend, "import_graph", refuse)
    x = torch.rand(3, 4)
    compiled = torch.compile(function, backend="weft", options={"cache": False, "fallback": "quiet"})
    torch.testing.assert_close(gradient(compiled, x), gradient(function, x))


def test_what_is_not_taken_is_written_at_the_end() -> None:
    traced = fx.symbolic_trace(lambda x: x + 1)
    with writing_later():
        kept = fx.GraphModule(traced, traced.graph)
        taken = lazy(fx.GraphModule(traced, traced.graph))
        assert not hasattr(kept, "_code")
    assert "x + 1" in kept.code
    assert "x + 1" in taken.code
    torch.testing.assert_close(kept(torch.ones(2)), taken(torch.ones(2)))


def test_what_others_make_is_written_at_once() -> None:
    with writing_later():
        pass
    assert "x + 1" in fx.symbolic_trace(lambda x: x + 1)._code
