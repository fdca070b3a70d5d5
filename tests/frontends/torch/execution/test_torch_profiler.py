"""Kernels under their names in `torch.profiler`, and in the traces that it writes for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from weft.frontends.torch.execution import torch_executor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(torch.softmax(x @ w + 1, -1)) * 2


def test_kernels_libraries_and_fallbacks_have_ranges_of_their_own(tmp_path: Path) -> None:
    x, w = torch.randn(64, 128), torch.randn(128, 256)
    compiled = torch.compile(scores, backend="weft", options={"fallback": "quiet"})
    expected = compiled(x, w)
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        for _ in range(2):
            torch.testing.assert_close(compiled(x, w), expected)
    counts = {event.key: event.count for event in traced.key_averages()}
    assert counts["weft::inference"] == 2
    kernels = [key for key in counts if key.startswith("weft::") and "exp" in key]
    assert kernels and all(counts[key] == 2 for key in kernels)
    assert counts["weft::aten::_linalg_svd (torch)"] == 2
    traced.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count(kernels[0]) == 2


def test_small_graphs_that_are_called_directly_have_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend="weft")
    x = torch.randn(5)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        compiled(x)
    assert "weft::sin_add" in {event.key for event in traced.key_averages()}

    def never(*_: object) -> None:
        raise AssertionError("steps run one by one for a profiler only")

    monkeypatch.setattr(torch_executor.TorchExecutor, "_run_traced", never)
    torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_arguments_stay_as_they_were_where_data_is_wrong() -> None:
    def function(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return table[index]

    run = torch.compile(function, backend="weft", options={"cache": False})
    table = torch.randn(4)
    run(torch.ones(3), table, torch.tensor([1]))
    x = torch.ones(3)
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(IndexError):
        run(x, table, torch.tensor([9]))
    assert torch.equal(x, torch.ones(3))
