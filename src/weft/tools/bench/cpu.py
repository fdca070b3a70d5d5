"""`weft bench cpu`: eager, Inductor and Weft in turns over operators, models, training steps and compilations.

ONNX Runtime takes part in the models, where it is installed.

The cases are in `weft.testing.bench.benchmark_ops` and `benchmark_models`, measuring is in
`weft.testing.bench.benchmark`, what is printed and written in `weft.tools.bench.report`. Progress goes to stderr.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from rich.status import Status
from rich.text import Text

from weft.tools.terminal import Terminal, UsageError, check_file, check_folder, counted, parse_shard

if TYPE_CHECKING:
    from weft.testing.bench.benchmark_case import Case, CaseResult
    from weft.testing.compile_times import CompileResult
    from weft.testing.peak_memory import MemoryResult

SUITES = ("small", "ops", "models", "quantized", "train", "kernels", "compile", "memory")


@dataclass(frozen=True)
class Request:
    """What to measure, and how long. `cases` are patterns as in a shell: `softmax.*`."""

    suites: tuple[str, ...] = SUITES
    cases: tuple[str, ...] = ()
    threads: int | None = None
    rounds: int = 40
    seconds: float = 10.0
    repeats: int = 1
    reports: Path = Path("reports")
    into: Path | None = None
    shard: str | None = None
    budget: float = float("inf")
    processor_time: bool = False

    def wants(self, name: str) -> bool:
        return not self.cases or any(fnmatchcase(name, pattern) for pattern in self.cases)


def bench_cpu(terminal: Terminal, request: Request) -> None:
    """Measure, report, and exit with 1 if Weft failed or disagreed with eager in a case."""
    unknown = sorted(set(request.suites) - set(SUITES))
    if unknown:
        raise UsageError(f"no suite is called {', '.join(unknown)}", hint=f"there are {', '.join(SUITES)}")
    check_folder(request.reports, "--reports")
    shard = parse_shard(request.shard)
    if request.into is not None:
        check_file(request.into, "--into", exists=True)
    with without_caches():
        # Imported in here: torch reads some of the settings when it is imported.
        import torch

        from weft.testing.bench.benchmark import cpp_compiler
        from weft.testing.bench.onnx_session import missing_packages
        from weft.testing.conformance.journal import part
        from weft.tools.bench.report import Results, insert, machine

        if request.threads:
            torch.set_num_threads(request.threads)
            keep_to_cores(request.threads)
        cases, models, weighed = (part(each, shard) for each in _chosen(request))
        results = Results(machine(torch.get_num_threads()))
        if request.processor_time:
            results.machine += "; seconds of all threads"
        if cpp_compiler() is None:
            results.left_out.append("Inductor: there is no C++ compiler (g++, or what $CXX names)")
        if any(case.exported for case in cases) and (missing := missing_packages()):
            results.left_out.append(f"ONNX Runtime: {', '.join(missing)} not installed (`pip install weft[onnx]`)")
        planned = f"{counted(len(cases), 'case')}, {counted(len(models), 'model')} to compile"
        planned += f", {counted(len(weighed), 'model')} to weigh" if weighed else ""
        terminal.err.print(f"{results.machine}; {planned}", highlight=False)
        for note in results.left_out:
            terminal.err.print(f"left out: {note}", highlight=False)
        results.timed = _measured(terminal, cases, request)
        if len(results.timed) < len(cases):
            names = ", ".join(case.name for case in cases[len(results.timed) :])
            results.left_out.append(f"not begun within the budget: {names}")
        results.compiled = _compiled(terminal, models, request)
        results.weighed = _weighed(terminal, weighed, request)
    for renderable in results.tables():
        terminal.show(renderable)
    if request.into is not None:
        insert(request.into, results.markdown())
    for path in results.write(request.reports):
        terminal.err.print(f"written: {path}", highlight=False)
    terminal.finish(results.figures(), code=0 if results.ok else 1)


def keep_to_cores(count: int) -> None:
    """Let the process use so many cores: some libraries have pools of their own and do not follow torch's setting."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


@contextmanager
def without_caches() -> Generator[Path]:
    """Compile times are those of a first start: caches are off, or in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder, warnings.catch_warnings():
        settings = {
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": folder,
            "CUDA_CACHE_DISABLE": "1",  # the driver's, of what it has compiled from PTX
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
        with patch.dict(os.environ, settings):
            yield Path(folder)


def _chosen(request: Request) -> tuple[list[Case], list[str], list[str]]:
    """The cases to measure, the models to compile, and those to take the memory of."""
    from weft.testing.bench.benchmark_kernels import kernel_cases
    from weft.testing.bench.benchmark_models import model_cases, quantized_cases, train_cases
    from weft.testing.bench.benchmark_ops import op_cases, small_cases
    from weft.testing.compile_times import MODELS

    makers: dict[str, Callable[[], list[Case]]] = {
        "small": small_cases,
        "ops": op_cases,
        "models": model_cases,
        "quantized": quantized_cases,
        "train": train_cases,
        "kernels": kernel_cases,
    }
    known = [case for suite, make in makers.items() if suite in request.suites for case in make()]
    models = list(MODELS) if "compile" in request.suites else []
    heavy = [case.name for case in model_cases()] if "memory" in request.suites else []
    cases = [case for case in known if request.wants(case.name)]
    chosen, weighed = ([name for name in names if request.wants(name)] for names in (models, heavy))
    if not cases and not chosen and not weighed:
        names = ", ".join(dict.fromkeys([*(case.name for case in known), *models, *heavy]))
        raise UsageError(f"no case matches {' '.join(request.cases)}", hint=f"there are {names}")
    return cases, chosen, weighed


def _measured(terminal: Terminal, cases: Sequence[Case], request: Request) -> list[CaseResult]:
    from weft.testing.bench.benchmark import Limits, processor_seconds, seconds_on_host
    from weft.testing.bench.benchmark_case import run_case
    from weft.tools.bench.report import line

    limits = Limits(request.rounds, min(request.rounds, Limits().least), request.seconds)
    clock = processor_seconds if request.processor_time else seconds_on_host
    results: list[CaseResult] = []
    start = time.monotonic()
    for number, case in enumerate(cases, 1):
        if time.monotonic() - start > request.budget:
            break
        with watching(terminal, f"{number}/{len(cases)} {case.suite} {case.name}") as watcher:
            results.append(run_case(case, limits, watcher.say, clock))
            watcher.done(line(results[-1]))
    return results


def _compiled(terminal: Terminal, models: Sequence[str], request: Request) -> list[CompileResult]:
    from weft.testing.bench.bytecode import write_bytecode
    from weft.testing.compile_times import measure_model
    from weft.tools.bench.report import line

    write_bytecode()
    results: list[CompileResult] = []
    for number, name in enumerate(models, 1):
        with watching(terminal, f"{number}/{len(models)} compile {name}") as watcher:
            found = measure_model(name, threads=request.threads, repeats=request.repeats, progress=watcher.say)
            results.append(found)
            watcher.done(line(found))
    return results


def _weighed(terminal: Terminal, models: Sequence[str], request: Request) -> list[MemoryResult]:
    from weft.testing.peak_memory import measure_memory
    from weft.tools.bench.report import line

    results: list[MemoryResult] = []
    for number, name in enumerate(models, 1):
        with watching(terminal, f"{number}/{len(models)} memory {name}") as watcher:
            results.append(measure_memory(name, threads=request.threads, progress=watcher.say))
            watcher.done(line(results[-1]))
    return results


@dataclass
class Watcher:
    """Progress of one case: a line that changes where a person watches, and a line that stays when it is done."""

    terminal: Terminal
    what: str
    start: float
    status: Status | None

    def say(self, text: str) -> None:
        if self.status is not None:
            self.status.update(Text(f"{self.what}: {text}"))

    def done(self, text: str) -> None:
        took = time.perf_counter() - self.start
        self.terminal.err.print(f"{self.what}: {text} [{took:.0f} s]", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def watching(terminal: Terminal, what: str) -> Generator[Watcher]:
    """Show what is being done; the watcher gets its steps and its end."""
    start = time.perf_counter()
    if not terminal.err.is_terminal:
        yield Watcher(terminal, what, start, None)
        return
    with terminal.err.status(Text(what)) as status:
        yield Watcher(terminal, what, start, status)
