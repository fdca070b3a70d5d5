"""Conformance with Triton: the language tests of a checkout of it, run with `triton` resolved to Weft.

`weft conform triton` calls this. pytest runs in a child process over workers of its own (pytest-xdist), with our plugin
(`triton_plugin`); nothing in the checkout is touched. Tests that upstream marks as runnable by its interpreter count;
the others, which look into a GPU's code, are counted apart.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import weft
from weft.errors import WeftError
from weft.testing.triton.triton_plugin import ALL, CHECKOUT, LIMIT, LOG

TESTS = "python/test/unit/language"
_SHIM = "import weft.triton\n\nweft.triton.enable()\n"
_INI = "[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = ignore\n"
_POLL_S = 0.2

Outcome = Literal["passed", "failed", "skipped"]


class CheckoutError(WeftError):
    """A folder that is not a checkout of Triton, or a run of its tests that did not come about."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The verdict on one test; `cause` is what failures of a kind have in common."""

    __test__ = False

    test: str
    outcome: Outcome
    marked: bool
    cause: str | None
    seconds: float


@dataclass
class TritonReport:
    """Every verdict of a run, and the counts over them."""

    results: list[TestResult] = field(default_factory=list[TestResult])
    marked: int = 0
    others: dict[str, int] = field(default_factory=dict[str, int])
    """Tests that upstream does not mark for its interpreter: how many each function has."""
    modules: dict[str, str] = field(default_factory=dict[str, str])
    """Files of tests that could not be imported, with the reason."""
    seconds: float = 0.0

    def having(self, outcome: Outcome, marked: bool = True) -> list[TestResult]:
        return [result for result in self.results if result.outcome == outcome and result.marked == marked]

    @property
    def missing(self) -> int:
        """Marked tests that were collected and have no verdict: the run was ended."""
        return self.marked - sum(result.marked for result in self.results)

    @property
    def share(self) -> float:
        """The part of the tests that ran and passed."""
        passed, failed = len(self.having("passed")), len(self.having("failed")) + max(self.missing, 0)
        return passed / max(passed + failed, 1)

    def by_cause(self, outcome: Outcome = "failed") -> dict[str, int]:
        """How many tests have each cause in common, the most frequent first."""
        return dict(Counter(result.cause or "" for result in self.having(outcome)).most_common())

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": len(self.having("passed")),
            "failed": len(self.having("failed")),
            "skipped": len(self.having("skipped")),
            "missing": self.missing,
            "share": round(self.share, 4),
            "by_cause": self.by_cause(),
            "skipped_by_cause": self.by_cause("skipped"),
            "others": {
                "tests": sum(self.others.values()),
                "functions": self.others,
                **{each: len(self.having(each, marked=False)) for each in ("passed", "failed", "skipped")},
            },
            "not_imported": self.modules,
            "seconds": round(self.seconds, 1),
        }


Progress = Callable[[TritonReport, TestResult | None], None]


@dataclass(frozen=True)
class TritonRun:
    """What to run: the tests of a checkout, those that an expression of pytest's `-k` selects."""

    checkout: Path
    expression: str = ""
    files: tuple[str, ...] = ()
    jobs: int = 2
    time_limit: float = 60.0
    interpret: bool = False
    others: bool = False
    """Run the tests that upstream does not mark, too."""
    output: Path | None = None
    """Where pytest's own report goes."""
    device: str = "cpu"
    """Where the tests put their tensors: cpu or cuda."""


def run_triton(run: TritonRun, on_progress: Progress | None = None) -> TritonReport:
    """Run the tests; `on_progress` is called whenever something is known."""
    tests = run.checkout / TESTS
    if not tests.is_dir():
        raise CheckoutError(
            f"{run.checkout} is no checkout of Triton: there is no {TESTS}",
            hint="git clone --depth 1 --branch v3.6.0 https://github.com/triton-lang/triton",
        )
    paths = [tests / name for name in run.files] or [tests]
    report, start = TritonReport(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weft-conform-") as folder:
        place = Path(folder)
        (place / "modules").mkdir()
        (place / "modules" / "triton.py").write_text(_SHIM)
        (place / "pytest.ini").write_text(_INI)
        (place / "log").touch()
        output = run.output or place / "output"
        with output.open("w") as sink, (place / "log").open() as log:
            process = subprocess.Popen(
                _command(run, place, paths), env=_environment(run, place), cwd=folder, stdout=sink, stderr=sink
            )
            try:
                while process.poll() is None:
                    time.sleep(_POLL_S)
                    _read(log, report, on_progress)
                _read(log, report, on_progress)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if not report.results and not report.marked:
            tail = "\n".join(output.read_text(errors="replace").splitlines()[-15:])
            raise CheckoutError(f"pytest ran no test:\n{tail}", hint="is pytest installed? pip install 'weft[dev]'")
    report.seconds = time.perf_counter() - start
    return report


def _command(run: TritonRun, place: Path, paths: list[Path]) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "weft.testing.triton.triton_plugin",
        "-c",
        str(place / "pytest.ini"),
    ]
    command += [
        "--rootdir",
        str(run.checkout),
        "--device",
        run.device,
        "-q",
        "--tb=short",
        "--continue-on-collection-errors",
    ]
    if run.jobs > 1 and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(run.jobs), "--max-worker-restart", "1000"]
    if run.expression:
        command += ["-k", run.expression]
    return [*command, *map(str, paths)]


def _environment(run: TritonRun, place: Path) -> dict[str, str]:
    """With `triton` as Weft in all processes; the tests are told to expect what upstream's interpreter can do."""
    ours = Path(weft.__file__).parent.parent
    paths = [str(place / "modules"), str(ours), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        # A pytest that this runs under has told its own workers who they are.
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_INTERPRET": "1",
        "WEFT_INTERPRET": str(int(run.interpret)),
        CHECKOUT: str(run.checkout.absolute()),
        LOG: str(place / "log"),
        LIMIT: str(run.time_limit),
        ALL: "1" if run.others else "",
    }


def _read(log: IO[str], report: TritonReport, on_progress: Progress | None) -> None:
    while line := log.readline():
        if not line.endswith("\n"):
            log.seek(log.tell() - len(line))
            return
        entry = json.loads(line)
        result = None
        match entry:
            case {"test": _}:
                result = TestResult(**entry)
                report.results.append(result)
            case {"module": str(name), "cause": str(cause)}:
                report.modules[name] = cause
            case {"marked": int(marked)}:
                report.marked, report.others = marked, entry["others"]
            case _:
                raise CheckoutError(f"the plugin wrote {line}")
        if on_progress is not None:
            on_progress(report, result)


def function_of(test: str) -> str:
    """The function of a test without its parameters."""
    return re.sub(r"\[.*", "", test.rpartition("::")[2])
