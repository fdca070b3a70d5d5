"""`weft bench gpu`: Weft against libraries, Inductor and Triton on a GPU, and against a copy of the same bytes.

The cases are in `weft.testing.gpu`, a file a suite; what is printed and written in `weft.tools.bench.gpu_report`. Each
case is run in a child process, and its row is written to a journal at once: a run that ends early goes on with
`--resume`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from weft.tools.bench.cpu import without_caches
from weft.tools.terminal import Terminal, UsageError, check_folder, counted, parse_shard

if TYPE_CHECKING:
    from weft.testing.gpu.case import GpuCase
    from weft.testing.gpu.train.models import TrainCase

SUITES = (
    "memory",
    "backward",
    "gemv",
    "gemm",
    "gemm_sweep",
    "attention",
    "attention_sweep",
    "moe",
    "kernels",
    "models",
    "train",
)
REHEARSAL_SHRINK = 2048
JOURNAL = "bench-gpu.jsonl"


@dataclass(frozen=True)
class GpuRequest:
    """What to measure, how long, and where rows go. A rehearsal runs small cases on the CPU: its times mean nothing."""

    suites: tuple[str, ...] = SUITES
    cases: tuple[str, ...] = ()
    shard: str | None = None
    resume: bool = False
    rounds: int = 60
    seconds: float = 4.0
    budget: float = 420.0
    reports: Path = Path("reports")
    results: Path = Path("benchmarks/results")
    into: Path | None = None
    rehearse: bool = False
    search: bool = True
    steps: int = 20
    profile: bool = False

    def wants(self, name: str) -> bool:
        return not self.cases or any(fnmatchcase(name, pattern) for pattern in self.cases)


def bench_gpu(terminal: Terminal, request: GpuRequest) -> None:
    """Measure, report, and exit with 1 if Weft failed or disagreed with a peer in a case."""
    unknown = sorted(set(request.suites) - set(SUITES))
    if unknown:
        raise UsageError(f"no suite is called {', '.join(unknown)}", hint=f"there are {', '.join(SUITES)}")
    shard = parse_shard(request.shard)
    check_folder(request.reports, "--reports")
    if not request.rehearse:
        check_folder(request.results, "--results")
    with without_caches() as folder, patch.dict(os.environ, {"WEFT_CACHE_DIR": str(folder / "weft")}):
        # Imported in here: torch reads some of the settings when it is imported.
        from weft.testing.conformance.journal import Journal, part, stamp
        from weft.testing.devices import device_named
        from weft.testing.gpu.runner import Setting, key, run_cases
        from weft.tools.bench.gpu_report import PREFIX, GpuResults, cells
        from weft.tools.bench.report import check_text, insert

        device = "cpu" if request.rehearse else "cuda"
        device_named(device)  # says so at once where there is none
        shrink = REHEARSAL_SHRINK if request.rehearse else 1
        setting = Setting(
            device,
            shrink,
            request.rounds,
            request.seconds,
            request.budget,
            search=request.search,
            steps=request.steps,
            profile=request.profile,
        )
        cases = _chosen(request)
        check_text(request.into, {PREFIX + case.suite for case in cases})
        mine = part(cases, shard)
        when = stamp()
        journal = Journal(request.reports / JOURNAL, f"{when['commit']} {device}")
        if not request.resume:
            journal.forget({key(case) for case in mine})
        terminal.err.print(f"{counted(len(mine), 'case')} of {len(cases)}, commit {when['commit']}", highlight=False)

        def say(row: dict[str, Any], number: int, total: int) -> None:
            said = " | ".join(filter(None, cells(row)))
            terminal.err.print(f"{number}/{total} {row['suite']} {said}", highlight=False, markup=False, soft_wrap=True)

        outcome = run_cases(mine, setting, journal, say)
    known = journal.results()
    results = GpuResults(
        {**when, **outcome.about}, [known[key(case)] for case in cases if key(case) in known], outcome.not_begun
    )
    for renderable in results.tables():
        terminal.show(renderable)
    if request.into is not None:
        insert(request.into, results.markdown())
    for path in results.write(request.reports if request.rehearse else request.results):
        terminal.err.print(f"written: {path}", highlight=False)
    terminal.finish(results.figures(), code=0 if results.ok and not results.not_begun else 1)


def _chosen(request: GpuRequest) -> list[GpuCase | TrainCase]:
    from weft.testing.gpu.suites import SUITES as MAKERS
    from weft.testing.gpu.train.models import SUITE as TRAIN
    from weft.testing.gpu.train.models import train_cases

    known = [case for suite in request.suites for case in (train_cases() if suite == TRAIN else MAKERS[suite]())]
    chosen = [case for case in known if request.wants(case.name)]
    if not chosen:
        names = ", ".join(case.name for case in known)
        raise UsageError(f"no case matches {' '.join(request.cases)}", hint=f"there are {names}")
    return chosen
