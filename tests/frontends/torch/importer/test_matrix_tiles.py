"""What torch's library takes in bf16 where it multiplies in a processor's matrix tiles."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft import pipelines
from weft.backends.cpu.target import CpuTarget
from weft.runtime.record import recording
from weft.targets.cpu import Cpu

TILED = CpuTarget("x86_64-unknown-linux-gnu", "sapphirerapids", "")
OPTIONS = {"cache": False}


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Both were rounded to bf16, perhaps at other places."""
    assert (found - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.parametrize(
    ("tokens", "dtype", "claimed"),
    [(256, torch.bfloat16, True), (64, torch.bfloat16, False), (256, torch.float32, False)],
    ids=str,
)
def test_long_attention(monkeypatch: pytest.MonkeyPatch, tokens: int, dtype: torch.dtype, claimed: bool) -> None:
    monkeypatch.setattr(Cpu, "capabilities", TILED.capabilities)
    torch.compiler.reset()
    query = torch.randn(1, 2, tokens, 16).to(dtype)
    function = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q) * 2, backend="weft", options=OPTIONS)
    with torch.no_grad(), recording() as records:
        found = function(query)
    assert_near(found, F.scaled_dot_product_attention(query, query, query) * 2)
    assert bool(records[0].claims) == claimed


def test_products_of_weights_that_are_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "cpu_passes", partial(_with_tiles, pipelines.cpu_passes))
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 96)).bfloat16()
    x = torch.randn(200, 128).bfloat16()  # a call for less would take longer than a kernel
    with recording() as records:
        found = torch.compile(model, backend="weft", options=OPTIONS)(x)
        found.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected = model(x)
    expected.sum().backward()
    assert_near(found, expected)
    for mine, parameter in zip(gradients, model.parameters(), strict=True):
        assert_near(mine, parameter.grad)
    assert all(record.claims for record in records)


def _with_tiles(passes, config, **given):
    return passes(config, **{**given, "matrix_tiles": True})
