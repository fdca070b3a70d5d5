"""Which graphs have processes started that help to compile them: large ones for a GPU, unless an option says no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch import backend, worker_starts
from weft.runtime import stored_programs
from weft.runtime.cache import DiskCache


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

    monkeypatch.setattr(worker_starts, "start_workers", started.append)
    monkeypatch.setattr(worker_starts, "kind_of", lambda inputs: kind)
    monkeypatch.setattr(backend, "check_masks", trace)
    with pytest.raises(Traced):
        backend.weft_backend(chain(length), [torch.ones(2)], options=options)
    assert bool(started) is expected


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often workers were started, for graphs that all count as large and a GPU's, with a cache that is empty."""
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    cache, found = DiskCache(tmp_path / "cache"), list[int]()
    monkeypatch.setattr(stored_programs, "disk_cache", lambda: cache)
    monkeypatch.setattr(worker_starts, "start_workers", found.append)
    monkeypatch.setattr(worker_starts, "kind_of", lambda inputs: "cuda")
    monkeypatch.setattr(worker_starts, "_LARGE", 1)
    return found


def compiled_anew(x: torch.Tensor, **options: Any) -> None:
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1, backend="weft", options=options)(x), x.sin() + 1)


def test_graphs_that_were_compiled_before_start_none(started: list[int]) -> None:
    compiled_anew(torch.randn(4))
    assert len(started) == 1
    compiled_anew(torch.randn(4))
    assert len(started) == 1
    compiled_anew(torch.randn(5))
    assert len(started) == 2, "another graph"
    compiled_anew(torch.randn(4), cache=False)
    assert len(started) == 3, "one that no cache is asked for"


def test_graphs_that_fail_are_not_noted(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def fail(*given: Any, **named: Any) -> None:
            raise UnsupportedError("no")

        patch.setattr(backend, "_by_aot_autograd", fail)
        with pytest.raises(Exception, match="no"):
            compiled_anew(torch.randn(4))
    compiled_anew(torch.randn(4))
    assert len(started) == 2


@pytest.mark.parametrize(("device", "expected"), [("cuda", 1), ("cpu", 0)])
def test_programs_that_are_missing_after_all_start_them(started: list[int], device: str, expected: int) -> None:
    worker_starts.start_for_missing(chain(3), Config(), torch.device(device))
    assert len(started) == expected


def test_a_program_that_is_missing_is_asked_for_help_with(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, missing = torch.randn(4), list[int]()
    compiled_anew(x)
    monkeypatch.setattr(backend, "start_for_missing", lambda module, config, device: missing.append(1))
    compiled_anew(x)
    assert not missing
    monkeypatch.setattr(backend, "load_graph", lambda *given: None)
    compiled_anew(x)
    assert missing == [1] and len(started) == 1
