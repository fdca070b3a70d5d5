"""Kernels whose blocks share a program in clusters, on the PTX machine."""

from __future__ import annotations

import pytest
import torch

from .. import emulated_graphs
from ..emulated_graphs import emulated


def normed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Channels normed over everything else, as they lie, and which of them are below 0, channel by channel."""
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
    y = (x - mean) * torch.rsqrt(variance + 1e-3)
    return y, (y <= 0.25).contiguous()


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks the clusters of the kernels that run have."""
    found: list[int] = []
    run = emulated_graphs.run_clusters

    def counted(*given: object) -> None:
        found.append(given[-2])  # type: ignore[arg-type]
        run(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(emulated_graphs, "run_clusters", counted)
    return found


@pytest.mark.parametrize("shape", [(4, 8, 32, 32), (4, 12, 40, 24), (4, 48, 16, 20)])
def test_results_that_lie_otherwise_than_operands(shape: tuple[int, ...], clusters: list[int]) -> None:
    """What blocks have parts of is not turned through the memory of one of them."""
    x = (torch.randn(shape) * 2 + torch.randn(shape[1])[:, None, None]).to(memory_format=torch.channels_last)
    y, below = emulated(normed)(x)
    expected, known = normed(x.double())
    assert max(clusters) > 1
    assert (y - expected).abs().max() < 1e-5
    far = (expected - 0.25).abs() > 1e-5
    assert torch.equal(below[far], known[far])
