"""Which graphs have processes started that help to compile them: large ones for a GPU, unless an option says no."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from weft.frontends.torch import backend


class Traced(Exception):
    """The graph would be traced now."""


def chain(length: int) -> fx.GraphModule:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(length):
        value = graph.call_function(torch.sin, (value,))
    graph.output((value,))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("length", "kind", "options", "expected"),
    [
        (200, "cuda", {}, True),
        (20, "cuda", {}, False),
        (200, "cpu", {}, False),
        (200, "cuda", {"workers": False}, False),
    ],
)
def test_large_graphs_for_a_gpu_start_workers(
    length: int, kind: str, options: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def trace(module: fx.GraphModule) -> None:
        raise Traced

    monkeypatch.setattr(backend, "start_workers", started.append)
    monkeypatch.setattr(backend, "kind_of", lambda inputs: kind)
    monkeypatch.setattr(backend, "check_masks", trace)
    with pytest.raises(Traced):
        backend.weft_backend(chain(length), [torch.ones(2)], options=options)
    assert bool(started) is expected
