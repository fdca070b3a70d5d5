"""Runs cases of raise parity, each in a fork of this process: what ends one costs nothing else.

The fork says first what eager did. If it dies before, eager's own behaviour is undefined, and nothing is asked of Weft.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import IO

import torch

from weft.testing.conformance.raise_cases import MOST_CASES, RaiseCase, cases, judged, outcome

LIMIT = 120
"""Seconds that a case may take."""


@dataclass(frozen=True)
class Tally:
    """What became of a unit's cases: how many were alike, and what is to be said of the others."""

    same: int
    undefined: tuple[str, ...]
    torch: tuple[str, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.same} alike"]
        for word, several in (("wrong", self.wrong), ("torch's own", self.torch), ("undefined", self.undefined)):
            lines += [f"  {word}: {each}" for each in several]
        return "\n".join(lines)


def check_unit(name: str, most: int = MOST_CASES, run: Callable[[RaiseCase], tuple[str, str]] | None = None) -> Tally:
    """Judge all cases of a unit."""
    torch.set_num_threads(1)  # a fork has no pool
    if run is None:
        _warm_up()
    found: dict[str, list[str]] = {"same": [], "undefined": [], "torch": [], "wrong": []}
    for case in cases(name, most):
        word, said = (run or isolated)(case)
        found[word].append(f"{case.label}: {said}")
    rest = (tuple(found[word]) for word in ("undefined", "torch", "wrong"))
    return Tally(len(found["same"]), *rest)


@cache
def _warm_up() -> None:
    """Load here what compiling takes, which each fork would load again: two thirds of its time."""
    outcome(RaiseCase("warm-up", torch.add, (torch.ones(2), torch.ones(2)), {}), "weft")


def isolated(case: RaiseCase) -> tuple[str, str]:
    """The verdict on a case, from a fork of this process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with contextlib.suppress(BaseException), os.fdopen(write_end, "w") as sink:
            _judge(case, sink)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as source:
        lines = source.read().splitlines()
    _, status = os.waitpid(child, 0)
    if len(lines) == 2:
        word, _, said = lines[1].partition(" ")
        return word, said
    how = f"signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "no answer"
    if not lines:
        return "undefined", f"eager ends the process with {how}"
    return "wrong", f"eager: {lines[0]}; compiled: {how}"


def _judge(case: RaiseCase, sink: IO[str]) -> None:
    signal.alarm(LIMIT)
    logging.disable()  # torch prints what it raises as well
    faulthandler.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    eager = outcome(case, None)
    print(eager.error or "nothing raised", file=sink, flush=True)
    word, said = judged(case, eager)
    print(word, said.replace("\n", " "), file=sink, flush=True)
