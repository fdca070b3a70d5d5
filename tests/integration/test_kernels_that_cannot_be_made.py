"""Where no kernel can be made for an op, torch carries out that op, and Weft the rest; where there is no memory to load
kernels, the caller hears of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.errors import LoweringError
from weft.frontends.torch import backend
from weft.lower.indexing import scan
from weft.lower.refusal import Refusal
from weft.runtime.record import CompilationRecord


def function(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() * 2
    z = y.cumsum(-1)
    return z.sin() + y


def assert_right(found: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), function(x.double()), rtol=1e-4, atol=1e-4)


def refuse(*arguments: Any) -> Refusal:
    return Refusal("no scans today")


def fail(*arguments: Any) -> Any:
    raise LoweringError("no scans today")


@pytest.mark.parametrize("lowering", [refuse, fail])
def test_torch_carries_out_one_op(
    monkeypatch: pytest.MonkeyPatch,
    records: list[CompilationRecord],
    caplog: pytest.LogCaptureFixture,
    lowering: Callable[..., Any],
) -> None:
    monkeypatch.setattr(scan, "lower_scan", lowering)
    x = torch.randn(4, 9)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="weft"):
        found = torch.compile(function, backend="weft")(x)
    assert_right(found, x)
    (record,) = records
    assert record.source != "torch" and "no scans today" in caplog.text
    assert [fallback.target for fallback in record.fallbacks] == ["aten.cumsum.default"]


def test_strict_wants_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "lower_scan", refuse)
    compiled = torch.compile(function, backend="weft", options={"strict": True})
    with torch.no_grad(), pytest.raises(Exception, match="no scans today"):
        compiled(torch.randn(4, 9))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there is no memory to load programs."""
    executor_for, full = backend.executor_for, [True]

    def loaded(*arguments: Any) -> Any:
        if full[0]:
            raise torch.OutOfMemoryError("no memory for code")
        return executor_for(*arguments)

    monkeypatch.setattr(backend, "executor_for", loaded)
    return full


def test_memory_that_runs_out_while_compiling_is_told_to_the_caller_and_the_next_call_works(
    full: list[bool], records: list[CompilationRecord]
) -> None:
    compiled = torch.compile(function, backend="weft")
    x = torch.randn(4, 9)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="no memory for code"):
                compiled(x)
        full[0] = False
        for _ in range(2):
            assert_right(compiled(x), x)
    assert records[-1].source != "torch" and not records[-1].error


def test_gradients_after_memory_ran_out_while_compiling(full: list[bool]) -> None:
    compiled = torch.compile(function, backend="weft")
    x = torch.randn(4, 9, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(x)
    full[0] = False
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(function(wide).sum(), wide)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
