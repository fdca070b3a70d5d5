"""Raise parity: a part of `weft conform raises` in every run, and all of it among the slow tests."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch

from weft.testing.conformance.raise_cases import RaiseCase, cases, judged, outcome, units
from weft.testing.conformance.raise_child import check_unit, isolated

PART = {
    "gather float32": 3,
    "index_add float32": 4,
    "nn.functional.embedding_bag float32": 3,
    "masked_scatter float32": 3,
    "floor_divide int64": 3,
}


@pytest.mark.parametrize("name", PART)
def test_eager_raises_if_and_only_if_weft_does(name: str) -> None:
    tally = check_unit(name, PART[name])
    assert not tally.wrong, str(tally)
    assert tally.same


@pytest.mark.slow
def test_all_that_index_divide_or_have_a_precondition() -> None:
    tallies = {name: check_unit(name) for name in units()}
    assert not {name: str(tally) for name, tally in tallies.items() if tally.wrong}


def test_cases_are_the_same_in_every_run() -> None:
    first, second = (cases("gather float32") for _ in range(2))
    assert [case.label for case in first] == [case.label for case in second]
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.tensors(), b.tensors(), equal_nan=True)
    assert any("with -1 at its end" in case.label for case in first)


def test_forks_find_loaded_what_compiling_takes() -> None:
    def loaded(x: torch.Tensor) -> torch.Tensor:
        if not any(name.startswith("weft.backends.cpu") for name in sys.modules):
            os.abort()
        return x + 1

    assert check_unit("gather float32", 0).same == 0
    assert isolated(RaiseCase("loaded", loaded, (torch.ones(2),), {})) == ("same", "")


def test_a_case_that_ends_the_process_is_a_verdict() -> None:
    def dies(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    word, said = isolated(RaiseCase("dies", dies, (torch.ones(2),), {}))
    assert word == "wrong" and "SIGKILL" in said
    word, said = isolated(RaiseCase("dies in eager", lambda x: os.abort(), (torch.ones(2),), {}))
    assert word == "undefined" and "SIGABRT" in said


def test_a_lost_error_is_wrong_and_one_that_tracing_loses_is_torchs() -> None:
    def raises_in_eager(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise ValueError("eager looks at it")
        return x + 1

    case = RaiseCase("lost by tracing", raises_in_eager, (torch.ones(2),), {})
    assert judged(case, outcome(case, None))[0] == "torch"
    good = RaiseCase("right", torch.add, (torch.ones(2), torch.ones(2)), {})
    assert judged(good, outcome(good, None)) == ("same", "")
