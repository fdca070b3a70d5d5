"""Runs checks of whole programs over child processes, with a journal: what `weft conform models` and others call."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.testing.child import Child
from weft.testing.conformance.journal import Journal

CHILD = "weft.testing.conformance.check_child"


@dataclass(frozen=True)
class Check:
    """One thing to check: `model`, `training`, `tutorial` or `raises`, by name, in an element type."""

    kind: str
    name: str
    dtype: str = "float32"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name} {self.dtype}"


@dataclass(frozen=True)
class CheckSettings:
    """Where and how long: `limit` seconds for one check, none begun after `budget`."""

    device: str = "cpu"
    jobs: int = 2
    limit: float = 400.0
    budget: float = 420.0
    steps: int = 20
    checkout: str = ""
    child: str = CHILD
    """The module whose process does the work."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else that process is told at its start."""
    lives: int | None = None
    """After how many checks a process is replaced by a new one; None for never."""


Verdict = dict[str, Any]


def run_checks(
    checks: Sequence[Check], settings: CheckSettings, journal: Journal, on_verdict: Callable[[Check, Verdict], None]
) -> list[Check]:
    """Run what the journal does not have; the checks for which there was no time."""
    done = journal.results()
    waiting: queue.SimpleQueue[Check] = queue.SimpleQueue()
    for check in checks:
        if check.key not in done:
            waiting.put(check)
    until, writing, left = time.perf_counter() + settings.budget, threading.Lock(), list[Check]()
    troubles: list[Exception] = []

    def work() -> None:
        given = {"device": settings.device, "steps": settings.steps, "checkout": settings.checkout, **settings.more}
        with Child(settings.child, {**given, "dtype": "float32"}) as child:
            for count in itertools.count(1):
                try:
                    check = waiting.get_nowait()
                except queue.Empty:
                    return
                late = time.perf_counter() > until
                verdict = None if late else _verdict(child, check, settings.limit)
                with writing:
                    if verdict is None:
                        left.append(check)
                        continue
                    journal.add(check.key, verdict)
                    on_verdict(check, verdict)
                if settings.lives is not None and count % settings.lives == 0:
                    child.stop()

    def watched() -> None:
        try:
            work()
        except Exception as error:  # raised again in the caller's thread
            troubles.append(error)

    threads = [threading.Thread(target=watched) for _ in range(min(settings.jobs, max(waiting.qsize(), 1)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]
    return left


def _verdict(child: Child, check: Check, limit: float) -> Verdict:
    """The last answer; those before it say what was begun, for the case that the process ends in the middle."""
    child.send({"kind": check.kind, "name": check.name, "dtype": check.dtype})
    so_far: Verdict = {}
    while (answer := child.receive(limit)) is not None:
        if "begun" not in answer:
            return answer
        so_far = answer
    return {**so_far, "ok": False, "said": child.epitaph(limit), "seconds": limit}
