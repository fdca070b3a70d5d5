"""Minimum cuts for torch's partitioner: those of networkx, and torch's partitioner asks for them here."""

from __future__ import annotations

import gc
import math
from typing import Any

import networkx
import pytest
import torch

from tests.seeds import generator
from weft.frontends.torch.remat import quick_cuts


def random_network(layers: int, width: int) -> Any:
    """Layers of nodes with edges between them, some without a limit; capacities are as torch's weights are."""
    draw, network = generator(), networkx.DiGraph()
    previous = ["source"]
    for layer in range(layers):
        nodes = [f"{layer}.{place}" for place in range(width)]
        for node in nodes:
            for tail in draw.choice(previous, size=min(len(previous), 3), replace=False):
                size = math.inf if draw.random() < 0.2 else float(draw.integers(1, 9)) * 1.1 ** int(draw.integers(0, 4))
                network.add_edge(str(tail), node, capacity=size)
            network.add_edge(node, f"{node}.out", capacity=int(draw.integers(0, 50)))
        previous = [f"{node}.out" for node in nodes]
    for node in previous:
        network.add_edge(node, "sink", capacity=math.inf)
    return network


@pytest.mark.parametrize(("layers", "width"), [(2, 3), (5, 4), (12, 5)])
def test_cuts_are_those_of_networkx(layers: int, width: int) -> None:
    for _ in range(10):
        network = random_network(layers, width)
        value, sides = networkx.minimum_cut(network, "source", "sink")
        found = quick_cuts.minimum_cut(network, "source", "sink")
        assert found is not None
        assert found[0] == pytest.approx(value, rel=1e-12)
        assert found[1] == sides


def test_a_network_without_a_finite_cut_is_left_to_networkx() -> None:
    network = networkx.DiGraph()
    network.add_edge("source", "a", capacity=math.inf)
    network.add_edge("a", "sink")
    assert quick_cuts.minimum_cut(network, "source", "sink") is None
    with quick_cuts.quick_cuts(), pytest.raises(networkx.NetworkXUnbounded):
        networkx.minimum_cut(network, "source", "sink")


def test_training_steps_are_cut_here_and_traced_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def cut(*given: Any) -> Any:
        asked.append(gc.isenabled())
        return original(*given)

    original = quick_cuts.minimum_cut
    monkeypatch.setattr(quick_cuts, "minimum_cut", cut)
    x = torch.randn(8, 8, requires_grad=True)
    torch.compile(lambda x: (torch.sin(x) @ torch.cos(x)).sum(), backend="weft", options={"cache": False})(x).backward()
    assert asked == [False]
    assert gc.isenabled()
    assert x.grad is not None
