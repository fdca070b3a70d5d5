"""`weft.profile`: the time of every step of every call, as a table and as a trace for Perfetto or chrome://tracing.

    with weft.profile("trace.json") as profile:
        model(x)
    print(profile)

While a profile is on, executors run their steps one by one, each as a tape of its own, instead of run by run; the
kernels are the same. Compilations inside the `with` are in the trace as well.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.ir.expr import evaluate, product
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LaunchStep, LoopStep, Plan, Step
from weft.runtime.record import CompilationRecord, recording
from weft.runtime.tape import Tape

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weft.runtime.program import Apart, Binding, Program, Segment


@dataclass(frozen=True)
class StepEvent:
    """One step of one call; times are those of `time.perf_counter_ns`."""

    step: Step
    plan: Plan
    sizes: Mapping[str, int]
    thread: int
    start: int
    end: int

    @property
    def name(self) -> str:
        return step_name(self.step)

    def work(self) -> dict[str, int]:
        return work_of(self.step, self.plan, self.sizes)


def step_name(step: Step) -> str:
    """What a step does, in a word or two."""
    match step:
        case KernelStep() | LaunchStep():
            return step.label or "copy"
        case DotStep():
            return f"{step.label} (BLAS)"
        case CallStep(claimed="collective" | "transfer" | "wait"):
            return step.target.rpartition("::")[2]
        case CallStep():
            return f"{step.target} (torch)"
        case LoopStep() | IfStep():
            return step.label


def work_of(step: Step, plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """What is known of a step's size: bytes of the tensors it touches, multiplications and additions."""

    def bytes_of(tensors: list[Any]) -> int:
        return sum(evaluate(product(tensor.shape), sizes) * tensor.dtype.bytes for tensor in tensors)

    match step:
        case KernelStep():
            touched = [plan.buffers[number].tensor for number in set(step.buffers)]
        case LaunchStep():
            touched = [plan.buffers[number].tensor for number in {place.buffer for place in step.places}]
        case DotStep():
            inner = evaluate(step.a.tensor.shape[-1], sizes)
            operations = 2 * inner * evaluate(product(step.out.tensor.shape), sizes)
            touched = [step.a.tensor, step.b.tensor, *[step.out.tensor] * (2 if step.accumulates else 1)]
            return {"bytes": bytes_of(touched), "operations": operations}
        case CallStep(claimed="collective" | "transfer"):
            return {"bytes": bytes_of([place.tensor for place in step.operands])}
        case CallStep() | LoopStep() | IfStep():
            return {}
    return {"bytes": bytes_of(touched), "programs": evaluate(step.grid, sizes)}


@dataclass(frozen=True)
class CallEvent:
    """One call of a compiled function."""

    name: str
    sizes: Mapping[str, int]
    thread: int
    start: int
    end: int


@dataclass
class Row:
    """All steps of one name: how often they ran, and for how long."""

    name: str
    calls: int = 0
    nanoseconds: int = 0
    bytes: int = 0
    operations: int = 0


@dataclass
class Profile:
    """What ran while the profile was on."""

    started: int = field(default_factory=time.perf_counter_ns)
    wall_clock: int = field(default_factory=time.time_ns)
    """When it was turned on, by the clock that processes share."""
    ended: int | None = None
    steps: list[StepEvent] = field(default_factory=list[StepEvent])
    calls: list[CallEvent] = field(default_factory=list[CallEvent])
    compilations: list[CompilationRecord] = field(default_factory=list[CompilationRecord])
    _tapes: dict[int, tuple[Binding, list[tuple[Step, Segment]]]] = field(
        default_factory=dict[int, "tuple[Binding, list[tuple[Step, Segment]]]"]
    )

    def run(
        self,
        program: Program,
        binding: Binding,
        launch: Callable[[Tape], int | None],
        call: Callable[[Apart], None],
    ) -> None:
        """Run a program step by step and note the times; `launch` may give the device's own, in nanoseconds."""
        thread, begun = threading.get_native_id(), time.perf_counter_ns()
        for step, segment in self._single_steps(program, binding):
            start, took = time.perf_counter_ns(), None
            if isinstance(segment, Tape):
                took = launch(segment)
            else:
                call(segment)
            end = time.perf_counter_ns() if took is None else start + took
            self.steps.append(StepEvent(step, program.plan, binding.sizes, thread, start, end))
        self.calls.append(CallEvent(program.plan.name, binding.sizes, thread, begun, time.perf_counter_ns()))

    def _single_steps(self, program: Program, binding: Binding) -> list[tuple[Step, Segment]]:
        known = self._tapes.get(id(binding))
        if known is None:
            single = single_steps(program, binding)
            # The binding is kept with them, so that its id stays its own.
            known = self._tapes[id(binding)] = (binding, single)
        return known[1]

    def rows(self) -> list[Row]:
        """Steps by name, those that took longest first."""
        rows: dict[str, Row] = {}
        for event in self.steps:
            row = rows.setdefault(event.name, Row(event.name))
            work = event.work()
            row.calls += 1
            row.nanoseconds += event.end - event.start
            row.bytes += work.get("bytes", 0)
            row.operations += work.get("operations", 0)
        return sorted(rows.values(), key=lambda row: -row.nanoseconds)

    def trace(self) -> dict[str, Any]:
        """The profile in Chrome's trace format, which Perfetto reads; times are in microseconds."""
        process = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "weft"}}
        ]

        def add(name: str, category: str, thread: int, start: int, end: int, arguments: Mapping[str, Any]) -> None:
            times = {"ts": (start - self.started) / 1e3, "dur": (end - start) / 1e3}
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": category,
                    "pid": process,
                    "tid": thread,
                    **times,
                    "args": dict(arguments),
                }
            )

        for call in self.calls:
            add(call.name, "call", call.thread, call.start, call.end, call.sizes)
        for event in self.steps:
            function = {"kernel": event.step.function} if isinstance(event.step, KernelStep | LaunchStep) else {}
            add(event.name, _category(event.step), event.thread, event.start, event.end, {**function, **event.work()})
        for number, (begun, ended) in enumerate(self.collectives()):
            # Of this process: a plain id is of all, and viewers show it beside processes, not below one.
            own = {"pid": process, "tid": begun.thread, "id2": {"local": hex(number)}}
            shared = {"name": begun.name, "cat": "in flight", **own}
            times = ((begun.start - self.started) / 1e3, (ended.end - self.started) / 1e3)
            events.append({"ph": "b", **shared, "ts": times[0], "args": begun.work()})
            events.append({"ph": "e", **shared, "ts": times[1]})
        for record in self.compilations:
            # Stages follow each other; only the first's beginning is known.
            start = record.started
            for stage, seconds in record.seconds.items():
                end = start + int(seconds * 1e9)
                add(stage, "compile", record.thread, start, end, {"graph": record.name})
                start = end
        place = {"host": platform.node(), "rank": os.environ.get("RANK"), "wall_clock_ns": self.wall_clock}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": place}

    def collectives(self) -> list[tuple[StepEvent, StepEvent]]:
        """What several ranks do together: where each is started, and where the last of what it brings is awaited."""
        under_way: dict[tuple[int, int], list[StepEvent]] = {}
        ended: dict[int, tuple[StepEvent, StepEvent]] = {}
        for event in self.steps:
            match event.step:
                case CallStep(claimed="collective", results=results):
                    for buffer in results:
                        under_way.setdefault((id(event.plan), buffer), []).append(event)
                case CallStep(claimed="wait", operands=(place, *_)) if under_way.get((id(event.plan), place.buffer)):
                    begun = under_way[id(event.plan), place.buffer].pop()
                    ended[id(begun)] = (begun, event)
                case _:
                    continue
        return list(ended.values())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file."""
        Path(path).write_text(json.dumps(self.trace()))

    def __rich__(self) -> RenderableType:
        from rich.table import Table

        rows = self.rows()
        total = sum(row.nanoseconds for row in rows)
        wall = ((self.ended or time.perf_counter_ns()) - self.started) / 1e6
        calls = "1 call" if len(self.calls) == 1 else f"{len(self.calls)} calls"
        table = Table(title=f"{calls}, {total / 1e6:.3f} ms in steps of {wall:.3f} ms", title_justify="left")
        for column in ("step", "runs", "ms", "share", "µs each", "GB/s", "GFLOP/s"):
            table.add_column(column, overflow="fold", justify="left" if column == "step" else "right")
        for row in rows:
            each = row.nanoseconds / row.calls / 1e3
            time_ = (
                str(row.calls),
                f"{row.nanoseconds / 1e6:.3f}",
                f"{row.nanoseconds / (total or 1):.0%}",
                f"{each:.1f}",
            )
            table.add_row(row.name, *time_, _rate(row.bytes, row.nanoseconds), _rate(row.operations, row.nanoseconds))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def single_steps(program: Program, binding: Binding) -> list[tuple[Step, Segment]]:
    """The steps of a program that is bound to sizes, each to be run by itself."""
    return [(step, program.segment([step], binding.sizes)) for step in program.plan.steps]


def _category(step: Step) -> str:
    match step:
        case KernelStep() | LaunchStep():
            return "kernel"
        case DotStep():
            return "library"
        case CallStep(claimed="collective" | "transfer" | "wait"):
            return step.claimed
        case CallStep():
            return "torch"
        case LoopStep() | IfStep():
            return "control flow"


def _rate(amount: int, nanoseconds: int) -> str:
    return f"{amount / nanoseconds:.2f}" if amount and nanoseconds else ""


_active: list[Profile] = []


def active_profile() -> Profile | None:
    """The profile that is on, if one is."""
    return _active[-1] if _active else None


@contextmanager
def profile(path: str | os.PathLike[str] | None = None) -> Generator[Profile]:
    """Time every step of compiled functions that run inside the `with`; the trace goes to `path`."""
    if path is not None and not (folder := Path(path).absolute().parent).is_dir():
        raise WeftError(
            f"there is no folder {folder} for the trace {Path(path).name}", hint="make it first, or give another path"
        )
    made = Profile()
    _active.append(made)
    try:
        with recording() as made.compilations:
            yield made
    finally:
        made.ended = time.perf_counter_ns()
        _active[:] = [other for other in _active if other is not made]
        if path is not None:
            made.write(path)
