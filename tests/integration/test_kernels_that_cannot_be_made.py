"""Where no kernel can be made for an op, torch carries out that op, and Weft the rest."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from weft.errors import LoweringError
from weft.lower import scan
from weft.runtime.record import CompilationRecord


def function(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() * 2
    z = y.cumsum(-1)
    return z.sin() + y


def refuse(*arguments: Any) -> Any:
    raise LoweringError("no scans today")


def test_torch_carries_out_one_op(
    monkeypatch: pytest.MonkeyPatch, records: list[CompilationRecord], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scan, "lower_scan", refuse)
    x = torch.randn(4, 9)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="weft"):
        found = torch.compile(function, backend="weft")(x)
    torch.testing.assert_close(found, function(x))
    (record,) = records
    assert record.source != "torch" and "no scans today" in caplog.text
    assert [fallback.target for fallback in record.fallbacks] == ["aten.cumsum.default"]


def test_strict_wants_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "lower_scan", refuse)
    compiled = torch.compile(function, backend="weft", options={"strict": True})
    with torch.no_grad(), pytest.raises(Exception, match="no scans today"):
        compiled(torch.randn(4, 9))
