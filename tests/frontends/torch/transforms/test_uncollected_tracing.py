"""The collector of garbage waits while Dynamo traces for Weft, and is then as it was."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

seen: list[bool] = []


@torch.compiler.assume_constant_result
def look() -> int:
    """Called while Dynamo traces."""
    seen.append(gc.isenabled())
    return 1


def function(x: Tensor) -> Tensor:
    return x + look()


def broken(x: Tensor) -> Tensor:
    y = x + look()
    torch._dynamo.graph_break()
    return y


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    seen.clear()


def test_it_waits_while_weft_traces() -> None:
    torch.compile(function, backend="weft", options={"cache": False})(torch.rand(4))
    assert seen == [False]
    assert gc.isenabled()


def test_it_is_as_it_was_behind_a_break() -> None:
    torch.compile(broken, backend="weft", options={"cache": False})(torch.rand(4))
    assert not any(seen)
    assert gc.isenabled()


def test_it_stays_off_where_the_user_has_turned_it_off() -> None:
    gc.disable()
    try:
        torch.compile(function, backend="weft", options={"cache": False})(torch.rand(4))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_works_for_other_backends() -> None:
    torch.compile(function, backend="eager")(torch.rand(4))
    assert seen == [True]
