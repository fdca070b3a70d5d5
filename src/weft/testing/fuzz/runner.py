"""Runs random programs over child processes, with a journal, and keeps a short script of each failure.

A child takes programs in batches and answers for each; one that dies or does not answer in time costs the run that
program. After some batches a child is replaced, so that nothing that leaks adds up.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.testing.child import Child
from weft.testing.conformance.journal import Journal
from weft.testing.fuzz.kinds import kind_named
from weft.testing.fuzz.verdict import Verdict

CHILD = "weft.testing.fuzz.child"
BATCH = 20
BATCHES = 25  # that one child takes

OnVerdict = Callable[[int, Verdict], None]


@dataclass(frozen=True)
class FuzzSettings:
    """What to run: programs of a kind with seeds from `first` on, `count` of them or until `seconds` have passed."""

    kind: str = "torch"
    first: int = 0
    count: int = 1000
    seconds: float | None = None
    jobs: int = 2
    device: str = "cpu"
    limit: float = 120.0
    """Seconds after which a program hangs."""
    shrinking: float = 90.0
    """Seconds for making a failure small; 0 keeps it as it is."""
    kept: Path = Path("reports/fuzz")
    alike: int = 2
    """How many failures of one signature are made small."""
    backend: str = ""
    """What is judged in Weft's place: see `kinds.backend_of`."""

    def child(self) -> Child:
        settings = {
            "kind": self.kind,
            "device": self.device,
            "backend": self.backend,
            "torch": self.kind not in ("graph", "onnx"),
        }
        return Child(CHILD, settings, {"OMP_NUM_THREADS": "2", "WEFT_CACHE": "0"})


@dataclass
class FuzzRun:
    """A run that is under way."""

    settings: FuzzSettings
    journal: Journal
    on_verdict: OnVerdict
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _alike: Counter[str] = field(default_factory=Counter[str])

    def run(self) -> list[int]:
        """Judge what the journal does not have; the seeds for which there was no time."""
        settings = self.settings
        done = self.journal.results()
        seeds = [seed for seed in range(settings.first, settings.first + settings.count)]
        waiting = [seed for seed in seeds if f"{settings.kind} {seed}" not in done]
        batches: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for start in range(0, len(waiting), BATCH):
            batches.put(waiting[start : start + BATCH])
        until = time.perf_counter() + (math.inf if settings.seconds is None else settings.seconds)
        left, troubles = list[int](), list[Exception]()

        def watched() -> None:
            try:
                self._work(batches, until, left)
            except Exception as error:  # raised again in the caller's thread
                troubles.append(error)

        threads = [threading.Thread(target=watched) for _ in range(min(settings.jobs, max(batches.qsize(), 1)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if troubles:
            raise troubles[0]
        return sorted(left)

    def _work(self, batches: queue.SimpleQueue[list[int]], until: float, left: list[int]) -> None:
        with self.settings.child() as child:
            taken = 0
            while True:
                try:
                    batch = batches.get_nowait()
                except queue.Empty:
                    return
                taken += 1
                if taken % BATCHES == 0:
                    child.stop()
                self._take(child, batch, until, left)

    def _take(self, child: Child, batch: list[int], until: float, left: list[int]) -> None:
        while batch:
            if time.perf_counter() > until:
                left.extend(batch)
                return
            # Near the end of the time, a program at a time.
            now = list(batch) if until - time.perf_counter() > 60 else batch[:1]
            child.send({"seeds": now})
            for seed in now:
                answer = child.receive(self.settings.limit)
                batch.remove(seed)
                if answer is None:
                    self._note(seed, Verdict(*_ending(child, self.settings.limit)), None)
                    break
                assert answer["seed"] == seed
                verdict = Verdict(answer["status"], answer["reason"], answer["seconds"])
                self._note(seed, verdict, answer.get("case"))

    def _note(self, seed: int, verdict: Verdict, case: dict[str, Any] | None) -> None:
        if case is None and verdict.failed:
            again = self._again(seed)
            if again is not None:
                verdict, case = again
        script = None
        if verdict.failed and case is not None:
            with self._writing:
                self._alike[verdict.signature] += 1
                keep = self._alike[verdict.signature] <= self.settings.alike
            script = self._kept(seed, verdict, case) if keep else None
        with self._writing:
            record = verdict.to_json() | ({"script": str(script)} if script else {})
            self.journal.add(f"{self.settings.kind} {seed}", record)
            self.on_verdict(seed, verdict)

    def _again(self, seed: int) -> tuple[Verdict, dict[str, Any]] | None:
        """A program that ended its child, alone: a busy machine is no finding, nor what an earlier program left."""
        with self.settings.child() as child:
            child.send({"drawn": seed})
            drawn = child.receive(self.settings.limit)
            if drawn is None:
                return None
            case = kind_named(self.settings.kind).read(drawn["case"])
            return _verdict(child, case, 2 * self.settings.limit), drawn["case"]

    def _kept(self, seed: int, verdict: Verdict, case: dict[str, Any]) -> Path:
        """The script of a failure, made small in a child of its own: it may crash as the program did."""
        settings = self.settings
        kind = kind_named(settings.kind)
        with settings.child() as child:
            small = kind.read(case)

            def same(candidate: Any) -> bool:
                found = _verdict(child, candidate, min(settings.limit, 30.0))
                return (found.status, found.signature) == (verdict.status, verdict.signature) or (
                    found.status == verdict.status == "wrong"
                )

            if settings.shrinking:
                small = kind.shrink(small, same, settings.shrinking)
        settings.kept.mkdir(parents=True, exist_ok=True)
        path = settings.kept / f"{settings.kind}_{settings.device.partition(':')[0]}_{seed}.py"
        path.write_text(small.script(f"{verdict.status}, {verdict.reason}"))
        return path


def _verdict(child: Child, case: Any, limit: float) -> Verdict:
    child.send({"case": case.to_json()})
    answer = child.receive(limit)
    return Verdict(answer["status"], answer["reason"]) if answer else Verdict(*_ending(child, limit))


def _ending(child: Child, limit: float) -> tuple[Any, str, float]:
    timed_out = child.timed_out
    return ("hangs" if timed_out else "crashes"), child.epitaph(limit), limit
