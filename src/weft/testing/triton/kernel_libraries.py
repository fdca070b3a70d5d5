"""Libraries of Triton kernels: their own tests, run with Weft as Triton and, where it is installed, with Triton.

`weft conform kernels` calls this. pytest runs in child processes with our plugin (`library_plugin`); nothing of the
library is touched. The tests are collected once, a random sample of them with a seed is dealt to the children, and
every verdict goes to a journal, from which a run that was ended goes on. A test that takes its process with it is an
error of that test alone: a new process goes on with the others.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import weft
from weft.errors import WeftError
from weft.testing.conformance.journal import Journal, commit, part
from weft.testing.triton.library_plugin import DEVICE, END, LIMIT, LOG, SIDE
from weft.testing.triton.pytest_verdicts import HANGING

TESTS = ("tests/ops", "test/transformers", "tests", "test")
"""Where libraries keep the tests of their kernels: the first of these that there is."""

_INI = "[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = ignore\n"
_BATCH = 40
"""So many tests one process is given: loading a library takes a while, and what it keeps of them in memory adds up."""
_START_S = 600.0

Side = Literal["weft", "triton"]
Verdict = Literal["right", "wrong", "error", "skipped"]


class LibraryError(WeftError):
    """A folder without tests of kernels, or a run of them that did not come about."""


@dataclass(frozen=True, slots=True)
class LibraryResult:
    """The verdict on one test with one Triton; `cause` is what failures of a kind have in common."""

    test: str
    side: Side
    verdict: Verdict
    cause: str | None
    seconds: float
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass
class LibraryReport:
    """Every verdict of a run, and the counts over them."""

    results: list[LibraryResult] = field(default_factory=list[LibraryResult])
    chosen: int = 0
    """How many tests each side is to run."""
    modules: dict[str, str] = field(default_factory=dict[str, str])
    """Files of tests that could not be imported, with the reason."""
    seconds: float = 0.0

    def having(self, side: Side, verdict: Verdict) -> list[LibraryResult]:
        return [result for result in self.results if result.side == side and result.verdict == verdict]

    def counts(self, side: Side) -> dict[str, int]:
        found = Counter(result.verdict for result in self.results if result.side == side)
        counts = {verdict: found[verdict] for verdict in ("right", "wrong", "error", "skipped")}
        return {**counts, "missing": self.chosen - sum(counts.values())}

    @property
    def sides(self) -> list[Side]:
        sides: tuple[Side, ...] = ("weft", "triton")
        return [side for side in sides if any(result.side == side for result in self.results)]

    @property
    def judged(self) -> dict[str, bool]:
        """Tests that count, and whether Weft is right: those that pass under Triton; without it, those that ran."""
        ours = {result.test: result.verdict for result in self.results if result.side == "weft"}
        if "triton" in self.sides:
            return {test: ours[test] == "right" for test in self._right_in_triton() if test in ours}
        return {test: verdict == "right" for test, verdict in ours.items() if verdict != "skipped"}

    def _right_in_triton(self) -> list[str]:
        return [result.test for result in self.having("triton", "right")]

    @property
    def share(self) -> float:
        judged = self.judged
        return sum(judged.values()) / max(len(judged), 1)

    @property
    def seconds_of_both(self) -> dict[str, float]:
        """How long the tests took, tuning and all, that are right on both sides."""
        right = [{result.test: result.seconds for result in self.having(side, "right")} for side in ("weft", "triton")]
        shared = right[0].keys() & right[1].keys()
        ours, theirs = (round(sum(seconds[test] for test in shared), 1) for seconds in right)
        return {"tests": len(shared), "weft": ours, "triton": theirs}

    def by_cause(self, side: Side, *verdicts: Verdict) -> dict[str, list[LibraryResult]]:
        """Results that have a cause in common, the most frequent first."""
        groups: dict[str, list[LibraryResult]] = {}
        for verdict in verdicts:
            for result in self.having(side, verdict):
                groups.setdefault(result.cause or "", []).append(result)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    def to_json(self) -> dict[str, Any]:
        return {
            "share": round(self.share, 4),
            "judged": len(self.judged),
            **{side: self.counts(side) for side in self.sides},
            "by_cause": {cause: len(found) for cause, found in self.by_cause("weft", "wrong", "error").items()},
            "skipped_by_cause": {cause: len(found) for cause, found in self.by_cause("weft", "skipped").items()},
            "seconds_of_both": self.seconds_of_both,
            "not_imported": self.modules,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class LibraryRun:
    """What to run: tests of a library, from a checkout or from where its package is installed."""

    library: Path
    journal: Path
    tests: str = ""
    """The folder of tests in the library; found if it is not given."""
    files: tuple[str, ...] = ()
    expression: str = ""
    sample: int | None = None
    seed: int = 0
    shard: tuple[int, int] | None = None
    jobs: int = 2
    time_limit: float = 120.0
    budget: float | None = None
    device: str = "cpu"
    sides: tuple[Side, ...] = ("weft",)
    resume: bool = False


Progress = Callable[[LibraryReport, LibraryResult | None], None]


def library_at(name: str) -> Path:
    """The folder of a library: a checkout, or where a package of this name is installed."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise LibraryError(f"{name} is neither a folder nor an installed package", hint="give --from a checkout")
    return Path(spec.submodule_search_locations[0])


def sampled(tests: Sequence[str], sample: int | None, seed: int, shard: tuple[int, int] | None) -> list[str]:
    """A random sample of the tests, the same for a seed whatever their order; of it, what a shard has."""
    tests = sorted(tests)
    if sample is not None and sample < len(tests):
        tests = random.Random(seed).sample(tests, sample)
    return sorted(part(tests, shard))


def run_library(run: LibraryRun, on_progress: Progress | None = None) -> LibraryReport:
    """Run the tests; `on_progress` is called whenever something is known."""
    return _Library(run, on_progress or (lambda report, result: None)).run()


class _Library:
    def __init__(self, run: LibraryRun, tell: Progress) -> None:
        self.asked, self.tell, self.report = run, tell, LibraryReport()
        self.start, self.lock = time.perf_counter(), threading.Lock()
        self.end = time.time() + run.budget if run.budget is not None else float("inf")

    def run(self) -> LibraryReport:
        with tempfile.TemporaryDirectory(prefix="weft-kernels-") as folder:
            self.place = Path(folder)
            (self.place / "pytest.ini").write_text(_INI)
            chosen = self._chosen()
            self.report.chosen = len(chosen)
            for side in self.asked.sides:
                self._run_side(side, chosen)
        self.report.seconds = time.perf_counter() - self.start
        return self.report

    # -- what to run -----------------------------------------------------------------------------------------------

    def _chosen(self) -> list[str]:
        """The tests of this run: a sample of all there are, of which this shard has its part."""
        log, output = self.place / "collected", self.place / "collected.txt"
        command = [
            *self._command(),
            "--collect-only",
            *(["-k", self.asked.expression] if self.asked.expression else []),
        ]
        with output.open("w") as sink:
            subprocess.run(
                [*command, *map(str, self._folders())], env=self._environment("weft", log), stdout=sink, stderr=sink
            )
        tests: list[str] = []
        for entry in _entries(log):
            tests += entry.get("collected", [])
            if "module" in entry:
                self.report.modules[entry["module"]] = entry["cause"]
        if not tests:
            tail = "\n".join(output.read_text(errors="replace").splitlines()[-15:])
            raise LibraryError(f"pytest found no test:\n{tail}", hint="is pytest installed? pip install 'weft[dev]'")
        return sampled(tests, self.asked.sample, self.asked.seed, self.asked.shard)

    def _folders(self) -> list[Path]:
        library = self.asked.library.absolute()
        wanted = (self.asked.tests,) if self.asked.tests else TESTS
        folder = next((library / name for name in wanted if (library / name).is_dir()), None)
        if folder is None:
            raise LibraryError(
                f"{library} has no tests in {' or '.join(wanted)}",
                hint="give --from a checkout, --tests a folder in it",
            )
        return [folder / name for name in self.asked.files] or [folder]

    # -- running ---------------------------------------------------------------------------------------------------

    def _run_side(self, side: Side, chosen: Sequence[str]) -> None:
        journal = Journal(self.asked.journal, f"{commit() if side == 'weft' else side} {self.asked.device}")
        name = self.asked.library.absolute().name
        if not self.asked.resume:
            journal.forget({f"{name}:{side}:{test}" for test in chosen})
        known = journal.results()
        waiting: list[str] = []
        for test in chosen:
            record = known.get(f"{name}:{side}:{test}")
            if record is None:
                waiting.append(test)
            else:
                self._add(LibraryResult(**record))

        def note(result: LibraryResult) -> None:
            with self.lock:
                journal.add(f"{name}:{side}:{result.test}", result.to_json())
                self._add(result)

        jobs = min(self.asked.jobs, max(len(waiting), 1))
        batch = min(_BATCH, -(-len(waiting) // jobs)) if waiting else 1
        threads = [threading.Thread(target=self._work, args=(side, waiting, batch, note)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _add(self, result: LibraryResult) -> None:
        self.report.results.append(result)
        self.tell(self.report, result)

    def _work(self, side: Side, waiting: list[str], batch: int, note: Callable[[LibraryResult], None]) -> None:
        """One process after the other, until no test waits or no time is left."""
        while time.time() < self.end:
            with self.lock:
                mine, waiting[:batch] = waiting[:batch], []
            if not mine:
                return
            left = _Batch(self, side, mine, note).run()
            with self.lock:
                waiting[:0] = left

    def _command(self) -> list[str]:
        options = ["-c", str(self.place / "pytest.ini"), "--rootdir", str(self.asked.library.absolute()), "-q"]
        options += ["--tb=short", "--continue-on-collection-errors", "-p", "no:xdist"]
        return [sys.executable, "-m", "pytest", "-p", "weft.testing.triton.library_plugin", *options]

    def _environment(self, side: Side, log: Path) -> dict[str, str]:
        log.touch()
        library, ours = self.asked.library.absolute(), Path(weft.__file__).parent.parent
        sources = [str(folder) for folder in (library / "src", library) if folder.is_dir()]
        given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        paths = [*sources, str(ours), *given]
        return {
            # A pytest that this runs under has told its own workers who they are.
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            SIDE: side,
            DEVICE: self.asked.device,
            LOG: str(log),
            LIMIT: str(self.asked.time_limit),
            END: str(self.end),
        }


class _Batch:
    """Some tests in one process."""

    def __init__(
        self, library: _Library, side: Side, tests: Sequence[str], note: Callable[[LibraryResult], None]
    ) -> None:
        self.library, self.tests, self.note = library, list(tests), note
        self.side: Side = side
        self.begun: str | None = None
        self.done: set[str] = set()
        self.seen = 0

    def run(self) -> list[str]:
        """Run them; gives those that were not begun."""
        with tempfile.TemporaryDirectory(dir=self.library.place) as folder:
            log, output, names = (Path(folder) / name for name in ("log", "output", "tests"))
            names.write_text("\n".join(str(self.library.asked.library.absolute() / test) for test in self.tests))
            with output.open("w") as sink:
                process = subprocess.Popen(
                    [*self.library._command(), f"@{names}"],  # pyright: ignore[reportPrivateUsage]
                    env=self.library._environment(self.side, log),  # pyright: ignore[reportPrivateUsage]
                    cwd=self.library.asked.library,
                    stdout=sink,
                    stderr=sink,
                )
                try:
                    status = self._follow(process, log)
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
            if self.begun is not None:
                self._end(self.begun, "error", f"the process ended with {_manner(status)}", 0.0)
            left = [test for test in self.tests if test not in self.done]
            if self.done or time.time() >= self.library.end:
                return left
            tail = output.read_text(errors="replace").splitlines()[-1:]
            for test in left:  # it has come to none of them: another process would not either
                self._end(test, "error", f"not collected: {''.join(tail)[:120]}", 0.0)
            return []

    def _follow(self, process: subprocess.Popen[bytes], log: Path) -> int | None:
        """Read what the process says until it ends; end it when it says nothing for too long."""
        patience = _START_S + HANGING * self.library.asked.time_limit
        last = time.monotonic()
        while True:
            status = process.poll()
            if self._read(log):
                last = time.monotonic()
            if status is not None:
                return status
            if time.monotonic() - last > patience:
                return None
            time.sleep(0.1)

    def _read(self, log: Path) -> bool:
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        fresh = [line for line in lines[self.seen :] if line.endswith("\n")]
        self.seen += len(fresh)
        for entry in map(json.loads, fresh):
            match entry:
                case {"begun": str(test)}:
                    self.begun = test
                case {"test": str(test), "verdict": verdict}:
                    self.begun = None
                    self._end(test, verdict, entry["cause"], entry["seconds"], entry["message"])
                case _:
                    continue
        return bool(fresh)

    def _end(self, test: str, verdict: Verdict, cause: str | None, seconds: float, message: str = "") -> None:
        if test not in self.done:
            self.done.add(test)
            self.note(LibraryResult(test, self.side, verdict, cause, seconds, message))


def _manner(status: int | None) -> str:
    if status is None:
        return "no answer for too long"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]
