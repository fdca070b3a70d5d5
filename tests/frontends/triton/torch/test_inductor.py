"""Functions under `torch.compile` while Weft is Triton: Weft compiles what Inductor needs Triton's own compiler for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import triton_op, wrap_triton

import weft.diagnostics
import weft.frontends.torch.backend as weft_backend
import weft.triton as triton
import weft.triton.language as tl

WRAPPER: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, 2 * tl.load(x + places, mask=places < n), mask=places < n)


def _graph(device: str) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.sin, (x,)),))
    with FakeTensorMode():
        inputs = [torch.empty(4, device=device)]
    return fx.GraphModule({}, graph), inputs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Weft is given to compile, with the mode."""
    weft.diagnostics.forget()
    calls: list[Any] = []

    def record(module: Any, inputs: Any, *, mode: str | None = None) -> str:
        calls.append(mode)
        return "by weft"

    monkeypatch.setattr(weft_backend, "weft_backend", record)
    return calls


def test_a_graph_of_a_gpu_is_compiled_by_weft_which_is_said_once(
    asked: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with triton.enable(), caplog.at_level(logging.WARNING, "weft"):
        for mode in (None, "reduce-overhead", "max-autotune"):
            assert WRAPPER(mode, None, None)(*_graph("cuda")) == "by weft"
    assert asked == [None, "reduce-overhead", "max-autotune"]
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("weft: ") and "test_inductor.py:" in said and "in place of Inductor" in said


def test_a_graph_of_the_processor_stays_inductors(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda *args, **options: "by inductor")
    with triton.enable():
        assert WRAPPER(None, None, None)(*_graph("cpu")) == "by inductor"
    assert asked == []


def test_the_last_one_to_end_gives_the_place_back(asked: list[Any]) -> None:
    before = WRAPPER.__call__
    first, second = triton.enable(), triton.enable()
    first.disable()
    first.disable()
    assert WRAPPER(None, None, None)(*_graph("cuda")) == "by weft"
    second.disable()
    assert WRAPPER.__call__ is before


def test_a_function_that_launches_a_kernel_of_an_operator_is_right(caplog: pytest.LogCaptureFixture) -> None:
    with triton.enable():

        @triton_op("weft_test::doubled_under_inductor", mutates_args={})
        def doubled(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            wrap_triton(double)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)
            return out

        @torch.compile
        def twice(x: torch.Tensor) -> torch.Tensor:
            return doubled(x).sin() + 1

        x = torch.randn(40)
        torch.testing.assert_close(twice(x), (2 * x).sin() + 1)
