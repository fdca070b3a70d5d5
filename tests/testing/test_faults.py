"""The fault harness finds nothing in a small slice, and finds what is planted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from weft.testing.faults.__main__ import KINDS
from weft.testing.faults.children import CRASHED, GOOD, HUNG, KILLED, WRONG, Forked, in_child
from weft.testing.op_memory import ALLOWANCE, enlarged, exceeds, outcome

SLICE = """
import itertools, random, torch
torch.set_num_threads(1)
from weft.testing.faults import calls, storage
from weft.testing.faults.programs import captured_programs
programs, draw = captured_programs()[:2], random.Random(0)
cases = [
    *itertools.islice(storage.kills(programs, draw), 5),
    *itertools.islice(storage.flips(programs, draw), 22),
    *itertools.islice(storage.cold_starts(programs, draw, 6), 1),
    *itertools.islice(storage.hostile(programs[:1], draw), 3),
    *itertools.islice(calls.short_memory(programs, draw), 2),
]
bad = [case for case in cases if case.is_bad]
assert not bad, bad
print(len(cases))
"""


def test_a_slice_of_faults_does_no_harm(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SLICE], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "33"), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_faults_of_each_kind_do_no_harm(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft.testing.faults", kind, "--seconds", "60", "--log", str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_what_children_do_is_told() -> None:
    assert in_child(lambda: None).kind == GOOD
    assert in_child(lambda: "not so").kind == WRONG
    raised = in_child(lambda: str(1 // 0))
    assert raised.kind == WRONG and "ZeroDivisionError" in raised.said
    crashed = in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert crashed.kind == CRASHED and "SIGKILL" in crashed.said
    hung = in_child(lambda: time.sleep(60), 0.2)
    assert hung.kind == HUNG and "of computing" in hung.said
    assert Forked(lambda: time.sleep(60)).outcome(60, killed_after=0.1).kind == KILLED


def test_a_child_that_computes_is_slow_and_does_not_hang() -> None:
    def compute() -> None:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            pass

    assert in_child(compute, 2).kind == GOOD


def test_a_peak_may_be_half_as_much_again_and_what_the_compiler_takes() -> None:
    assert not exceeds(ALLOWANCE + 150, 100)
    assert exceeds(ALLOWANCE + 151, 100)


def test_samples_with_sparse_tensors_cannot_be_enlarged() -> None:
    dense = SimpleNamespace(input=torch.randn(4, 3), args=(torch.randn(3, 5),), kwargs={})
    assert [tuple(args[1].shape) for args, _ in enlarged(dense, 480)] == [(24, 5), (3, 40)]
    sparse = SimpleNamespace(input=torch.eye(4).to_sparse_coo(), args=(torch.randn(4, 5),), kwargs={})
    assert not list(enlarged(sparse, 480))


class Dying:
    """A child that answers some things and then no more."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)

    def receive(self, time_limit: float) -> dict[str, Any] | None:
        return self.answers.pop(0) if self.answers else None

    def epitaph(self, time_limit: float) -> str:
        return "signal SIGKILL"


def test_a_child_that_dies_is_laid_to_whoever_was_running() -> None:
    eager, ours = {"turn": "eager"}, {"turn": "weft"}
    assert outcome(cast("Any", Dying(eager)), 9.0) == {"left_out": "eager failed: signal SIGKILL"}
    assert outcome(cast("Any", Dying(eager, ours)), 9.0) == {"left_out": "Weft failed: signal SIGKILL"}
    assert outcome(cast("Any", Dying(eager, ours, {"weft": 3})), 9.0) == {"weft": 3}
