"""Conformance with PyTorch: every operator of its OpInfo database through a `torch.compile` backend, against eager.

`weft conform opinfo` calls this. The work is spread over child processes (`opinfo_worker`), so that an abort or a hang
costs the run one case; each case is judged by `opinfo_cases`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.errors import WeftError
from weft.testing.conformance.journal import part
from weft.testing.conformance.opinfo_cases import judge_unit
from weft.testing.conformance.opinfo_units import Backend, CaseResult, CaseSettings, Status, Unit, operators, units
from weft.testing.conformance.opinfo_worker import OpinfoWorker, operator_names

# Where a backend that goes by name keeps its `TargetRecorder`.
RECORDERS = {"weft": "weft.frontends.torch.backend:record_targets"}

Progress = Callable[[CaseResult, int, int], None]


class ChoiceError(WeftError):
    """Operators or element types that PyTorch's database does not have."""


@dataclass(frozen=True, slots=True)
class OpinfoReport:
    """Every verdict of a run, and the counts over them."""

    backend: str
    strict: bool
    results: tuple[CaseResult, ...]
    seconds: float
    not_begun: tuple[str, ...] = ()
    """Operators for which there was no time."""

    def having(self, status: Status) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if result.status == status)

    @property
    def ok(self) -> bool:
        """No result was wrong, none failed and none is missing; a strict backend may refuse."""
        return not self.having("wrong") and not self.having("error") and not self.not_begun

    @property
    def core_targets(self) -> tuple[str, ...]:
        """The core ATen targets that stood in the graphs which the backend received."""
        return _names(result.core for result in self.results)

    @property
    def opaque_targets(self) -> tuple[str, ...]:
        """The targets that ran as opaque calls, or were refused, at least once."""
        return _names(result.opaque for result in self.results)

    @property
    def native_targets(self) -> tuple[str, ...]:
        """The core targets that stood in a case which passed, and were never opaque."""
        passed = _names(result.core for result in self.having("passed"))
        return tuple(sorted(set(passed) - set(self.opaque_targets)))

    @property
    def other_targets(self) -> tuple[str, ...]:
        """The core targets that are not native."""
        return tuple(sorted(set(self.core_targets) - set(self.native_targets)))

    def target_counts(self) -> Counter[str]:
        """In how many cases each target stood, core or not."""
        return Counter(target for result in self.results for target in result.seen)

    def to_json(self) -> dict[str, Any]:
        """The figures, and lists of all that did not pass."""
        return {
            "backend": self.backend,
            "strict": self.strict,
            "cases": len(self.results),
            "passed": len(self.having("passed")),
            "wrong": len(self.having("wrong")),
            "errors": len(self.having("error")),
            "refused": len(self.having("refused")),
            "skipped_identity": len(self.having("skipped")),
            "native_targets": len(self.native_targets),
            "core_targets": len(self.core_targets),
            "seconds": round(self.seconds, 1),
            "not_begun": list(self.not_begun),
            "not_native": list(self.other_targets),
            "wrong_cases": _with_reasons(self.having("wrong")),
            "error_cases": _with_reasons(self.having("error")),
            "refused_cases": _with_reasons(self.having("refused")),
            "skipped_cases": _with_reasons(self.having("skipped")),
            "stride_differences": [result.name for result in self.results if result.strides_differ],
        }

    def __str__(self) -> str:
        figures = self.to_json()
        keys = ("cases", "passed", "wrong", "errors", "refused", "skipped_identity", "native_targets", "core_targets")
        return ", ".join(f"{figures[key]:,} {key.replace('_', ' ')}" for key in keys) + f" in {self.seconds:.0f} s"


def run_opinfo(
    backend: Backend = "weft",
    dtypes: Sequence[str] = ("float32",),
    samples: int = 2,
    gradients: bool = True,
    ops: Sequence[str] | None = None,
    strict: bool = False,
    shard: tuple[int, int] | None = None,
    on_progress: Progress | None = None,
    *,
    jobs: int = 2,
    time_limit: float = 120.0,
    recorder: str | None = None,
    log: Path | None = None,
    device: str = "cpu",
    budget: float | None = None,
    resume: bool = False,
    transform: str = "",
) -> OpinfoReport:
    """Run `samples` samples of every operator in each dtype through the backend: forward, then gradients if any.

    `backend` is a name that `torch.compile` knows, "identity", "module:attribute", or, with `jobs=0` (this process), a
    callable. `strict` reaches it as `options={"strict": True}`. `ops` names operators (`nn.functional.gelu`); `shard` =
    (i, n) takes every n-th from the i-th. A sample that takes longer than `time_limit` seconds is ended. `recorder`
    ("module:attribute") is the backend's `TargetRecorder`. `on_progress` gets each result and at which operator of how
    many the run is; `log` gets each result as a JSON line, and with `resume` operators that have their verdicts there
    are left out. After `budget` seconds no operator is begun. With a `transform` (`transform_cases.TRANSFORMS`) it is
    second derivatives, tangents or batches that are judged, and what runs in eager is an error.
    """
    if callable(backend) and jobs > 0:
        raise WeftError("a callable cannot be sent to another process", hint="pass the backend's name, or jobs=0")
    start = time.perf_counter()
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    settings = CaseSettings(backend, recorder or RECORDERS.get(name), strict, gradients, samples, device, transform)
    earlier = _logged(log, samples) if resume and log is not None and log.exists() else []
    done = frozenset((result.op, result.dtype) for result in earlier)
    until = start + (math.inf if budget is None else budget)
    choice = _Choice(tuple(dtypes), None if ops is None else tuple(ops), shard, done, until)
    choice.check_types()
    steps = _in_workers(settings, choice, jobs, time_limit) if jobs > 0 else _in_this_process(settings, choice)
    results = list(earlier)
    with ExitStack() as stack:
        sink = None if log is None else stack.enter_context(log.open("a" if resume else "w"))
        for result, position, total in steps:
            results.append(result)
            if sink is not None:
                print(json.dumps(result.to_json()), file=sink, flush=True)
            if on_progress is not None:
                on_progress(result, position, total)
    results.sort(key=lambda result: (result.dtype, result.op, result.sample))
    return OpinfoReport(name, strict, tuple(results), time.perf_counter() - start, tuple(choice.not_begun))


def _logged(log: Path, samples: int) -> list[CaseResult]:
    """The verdicts of a run that was ended, but for operators that lack some: those are run again."""
    found: dict[tuple[str, str, int], CaseResult] = {}
    for line in log.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the process was ended while it wrote
            result = CaseResult.from_json(json.loads(line))
            found[result.op, result.dtype, result.sample] = result
    counts = Counter((result.op, result.dtype) for result in found.values())
    return [result for result in found.values() if counts[result.op, result.dtype] >= samples]


@dataclass(frozen=True, slots=True)
class _Choice:
    dtypes: tuple[str, ...]
    ops: tuple[str, ...] | None
    shard: tuple[int, int] | None
    done: frozenset[tuple[str, str]] = frozenset()
    until: float = math.inf
    not_begun: list[str] = field(default_factory=list[str])

    def check_types(self) -> None:
        for name in self.dtypes:
            if not isinstance(getattr(torch, name, None), torch.dtype):
                raise ChoiceError(f"torch has no element type called {name}", hint="some are float32 and int64")

    def check_names(self, known: Sequence[str]) -> None:
        for name in self.ops or ():
            if name not in known:
                close = difflib.get_close_matches(name, known) or [each for each in known if name in each][:3]
                hint = f"did you mean {' or '.join(close)}?" if close else "names are as in torch: softmax, linalg.svd"
                raise ChoiceError(f"PyTorch's database has no operator called {name}", hint=hint)

    def of(self, found: list[Unit]) -> list[Unit]:
        if not found:
            raise ChoiceError(f"none of these operators takes {' or '.join(self.dtypes)}")
        return [unit for unit in part(found, self.shard) if (unit.op, unit.dtype) not in self.done]

    def begins(self, unit: Unit) -> bool:
        """Whether there is time for a unit; it is noted where there is not."""
        if time.perf_counter() < self.until:
            return True
        self.not_begun.append(f"{unit.op}[{unit.dtype}]")
        return False


_Step = tuple[CaseResult, int, int]
_Answers = queue.SimpleQueue[CaseResult | Exception | None]


def _in_this_process(settings: CaseSettings, choice: _Choice) -> Iterator[_Step]:
    choice.check_names(operator_names(operators()))
    chosen = choice.of(units(choice.dtypes, choice.ops))
    for position, unit in enumerate(chosen, 1):
        if choice.begins(unit):
            for result in judge_unit(unit, settings):
                yield result, position, len(chosen)


def _in_workers(settings: CaseSettings, choice: _Choice, jobs: int, time_limit: float) -> Iterator[_Step]:
    with ExitStack() as stack:
        workers = [stack.enter_context(OpinfoWorker(settings, time_limit)) for _ in range(jobs)]
        if choice.ops:
            choice.check_names(workers[0].names())
        chosen = choice.of(workers[0].units(choice.dtypes, choice.ops))
        waiting: queue.SimpleQueue[Unit] = queue.SimpleQueue()
        for unit in chosen:
            waiting.put(unit)
        answers: _Answers = queue.SimpleQueue()
        for worker in workers:
            threading.Thread(target=_drain, args=(worker, waiting, answers, choice), daemon=True).start()
        busy = jobs
        while busy:
            match answers.get():
                case None:
                    busy -= 1
                case Exception() as error:
                    raise error
                case result:
                    yield result, len(chosen) - waiting.qsize(), len(chosen)


def _drain(worker: OpinfoWorker, waiting: queue.SimpleQueue[Unit], answers: _Answers, choice: _Choice) -> None:
    """Let one worker take units until there are none; then put None."""
    try:
        while True:
            unit = waiting.get_nowait()
            if choice.begins(unit):
                for result in worker.judge(unit):
                    answers.put(result)
    except queue.Empty:
        answers.put(None)
    except Exception as error:  # anything else ends the run, in the caller's thread
        answers.put(error)


def _names(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({name for group in groups for name in group}))


def _with_reasons(results: Sequence[CaseResult]) -> list[str]:
    return [f"{result.name}: {result.reason}" for result in results]
