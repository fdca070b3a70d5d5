"""`weft bench func`: transformations by Weft, by torch.func in eager and under Inductor, in turns.

The cases are in `weft.testing.bench.benchmark_transforms`. Rows go to a journal as they come, from which a run that was
ended goes on; the tables are those of `weft bench cpu`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from weft.tools.bench.cpu import keep_to_cores, watching, without_caches
from weft.tools.terminal import Terminal, UsageError, check_file, check_folder, counted, parse_shard

if TYPE_CHECKING:
    from weft.testing.bench.benchmark_case import CaseResult
    from weft.testing.bench.benchmark_transforms import TransformCase
    from weft.testing.conformance.journal import Journal
    from weft.testing.devices import Device

JOURNAL = "bench-func.jsonl"


@dataclass(frozen=True)
class FuncRequest:
    """What to measure, where, and how long. `cases` are patterns as in a shell: `hessian*`."""

    cases: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int | None = None
    rounds: int = 40
    seconds: float = 10.0
    shard: str | None = None
    resume: bool = False
    budget: float = float("inf")
    reports: Path = Path("reports")
    results: Path | None = None
    into: Path | None = None
    processor_time: bool = False

    def wants(self, name: str) -> bool:
        return not self.cases or any(fnmatchcase(name, pattern) for pattern in self.cases)


def bench_func(terminal: Terminal, request: FuncRequest) -> None:
    """Measure, report, and exit with 1 if Weft failed or is farther from float64 than it may be."""
    if request.processor_time and request.device != "cpu":
        raise UsageError("--processor-time is the host's alone", hint="leave it out, or measure on the CPU")
    check_folder(request.reports, "--reports")
    shard = parse_shard(request.shard)
    if request.results is not None:
        check_folder(request.results, "--results")
    if request.into is not None:
        check_file(request.into, "--into", exists=True)
    with without_caches() as folder, patch.dict(os.environ, {"WEFT_CACHE_DIR": str(folder / "weft")}):
        # Imported in here: torch reads some of the settings when it is imported.
        import torch

        from weft.testing.bench.benchmark import cpp_compiler
        from weft.testing.conformance.journal import Journal, commit, part
        from weft.testing.devices import device_named
        from weft.tools.bench.report import Results, insert, machine

        if request.threads:
            torch.set_num_threads(request.threads)
            keep_to_cores(request.threads)
        device = device_named(request.device)
        cases: list[TransformCase] = part(_chosen(request), shard)
        threads = torch.get_num_threads()
        results = Results(machine(threads, device))
        journal = Journal(
            request.reports / JOURNAL, f"{commit()} {device.name} {threads} threads {request.processor_time}"
        )
        if not request.resume:
            journal.forget({case.name for case in cases})
        if device.name == "cpu" and cpp_compiler() is None:
            results.left_out.append("Inductor: there is no C++ compiler (g++, or what $CXX names)")
        if request.processor_time:
            results.machine += "; seconds of all threads"
        terminal.err.print(f"{results.machine}; {counted(len(cases), 'case')}", highlight=False)
        results.timed = _measured(terminal, cases, device, journal, request)
        done = {result.name for result in results.timed}
        if missing := [case.name for case in cases if case.name not in done]:
            results.left_out.append(f"not begun within the budget, or after the device failed: {', '.join(missing)}")
    for renderable in results.tables():
        terminal.show(renderable)
    if request.into is not None:
        insert(request.into, results.markdown())
    kept = results.keep(request.results, _file_name(request, device.name, threads))
    for path in (*results.write(request.reports), *kept):
        terminal.err.print(f"written: {path}", highlight=False)
    terminal.finish(results.figures(), code=0 if results.ok else 1)


def _file_name(request: FuncRequest, device: str, threads: int) -> str:
    """What tells a file of results from others of the day: figures of other threads or clocks are other figures."""
    parts = [device, "func", *([f"{threads}-threads"] if device == "cpu" else [])]
    parts += ["processor-time"] if request.processor_time else []
    parts += [f"shard-{request.shard.replace('/', '-of-')}"] if request.shard else []
    return "-".join(parts)


def _chosen(request: FuncRequest) -> list[TransformCase]:
    from weft.testing.bench.benchmark_transforms import transform_cases

    known = transform_cases()
    chosen = [case for case in known if request.wants(case.name)]
    if not chosen:
        names = ", ".join(case.name for case in known)
        raise UsageError(f"no case matches {' '.join(request.cases)}", hint=f"there are {names}")
    return chosen


def _measured(
    terminal: Terminal, cases: list[TransformCase], device: Device, journal: Journal, request: FuncRequest
) -> list[CaseResult]:
    from weft.testing.bench.benchmark import Limits, processor_seconds
    from weft.testing.bench.benchmark_case import CaseResult
    from weft.testing.bench.transform_race import run_transform_case
    from weft.testing.devices import is_usable
    from weft.tools.bench.report import line

    limits = Limits(request.rounds, min(request.rounds, Limits().least), request.seconds)
    known = journal.results()
    results: list[CaseResult] = []
    start = time.monotonic()
    for number, case in enumerate(cases, 1):
        if case.name in known:
            results.append(CaseResult.of_record(known[case.name]))
            continue
        if time.monotonic() - start > request.budget or not is_usable(device.name):
            continue  # what comes later may be known
        with watching(terminal, f"{number}/{len(cases)} {case.name}") as watcher:
            clock = processor_seconds if request.processor_time else None
            results.append(run_transform_case(case, device, limits, watcher.say, clock))
            watcher.done(line(results[-1]))
        journal.add(case.name, results[-1].record())
    return results
