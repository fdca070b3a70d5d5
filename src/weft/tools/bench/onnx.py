"""`weft bench model.onnx`: how quickly ONNX models start and run, beside ONNX Runtime where it is asked for.

Each model has a process of its own, without a framework: `cold` begins with an empty cache, `warm` with a filled one.
Progress goes to stderr, the table comes last.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from weft.errors import MissingError, WeftError
from weft.testing.bench.benchmark import ONNX_RUNTIME, WEFT, Progress, Ratio, Timing, geometric_mean, paired_ratio
from weft.testing.bench.bytecode import write_bytecode
from weft.testing.bench.onnx_session import missing_packages
from weft.testing.child import Child
from weft.tools.bench.cpu import watching
from weft.tools.terminal import Terminal, UsageError

ALLOWED_ERROR = 1e-3
"""Of the largest value: far above what another order of sums makes, far below what a mistake does."""
START_SECONDS = 600.0
_ULP = 2.0**-23
"""Of float32, as a share of the largest value."""


@dataclass(frozen=True)
class OnnxBenchRequest:
    """Which models to measure, on what, and how long."""

    models: tuple[Path, ...]
    peer: str = ""
    threads: int | None = None
    rounds: int = 40
    seconds: float = 10.0
    tolerance: float = ALLOWED_ERROR
    sizes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    processor_time: bool = False
    float64: bool = False

    def settings(self, path: Path) -> dict[str, Any]:
        """What a child needs to know."""
        return {
            "path": str(path),
            "threads": self.thread_count,
            "processor_time": self.processor_time,
            "sizes": {name: _number(text, "size") for name, text in _named(self.sizes, "--size batch=1")},
            "shapes": {
                name: [_number(size, "shape") for size in text.split("x")] if text else []
                for name, text in _named(self.shapes, "--shape x=1x3x224x224")
            },
            "contents": dict(_named(self.inputs, "--input x=x.npy")),
        }

    @property
    def thread_count(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class OnnxResult:
    """One model: seconds until the first result in fresh processes, and of calls, or what went wrong."""

    name: str
    threads: int
    cold: dict[str, Any]
    warm: dict[str, Any]
    race: dict[str, Any]
    tolerance: float
    failure: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times as fast as its peer Weft is."""
        seconds = self.race.get("seconds", {})
        if WEFT not in seconds or ONNX_RUNTIME not in seconds:
            return None
        return paired_ratio(Timing(tuple(seconds[ONNX_RUNTIME])), Timing(tuple(seconds[WEFT])))

    @property
    def wrong(self) -> bool:
        """Whether Weft's results are others than its peer's, or too far from those in float64, given its peer's."""
        error = self.race.get("error")
        mine, peers = self.race.get("float64_error"), self.race.get("peer_float64_error")
        if mine is not None and peers is not None and not mine <= allowed_error(peers):
            return True
        return error is not None and not error <= self.tolerance

    @property
    def ok(self) -> bool:
        return not self.failure and not self.wrong

    def median(self, who: str) -> float | None:
        seconds = self.race.get("seconds", {}).get(who)
        return Timing(tuple(seconds)).median if seconds else None

    def figures(self) -> dict[str, Any]:
        """The result as plain data: seconds, and a ratio that is above 1 where Weft is faster."""
        ratio = self.ratio
        return {
            "suite": "onnx",
            "name": self.name,
            "threads": self.threads,
            "inputs": self.cold.get("inputs"),
            WEFT: self.median(WEFT),
            ONNX_RUNTIME: self.median(ONNX_RUNTIME),
            "ratio": ratio and ratio.median,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "peer": ONNX_RUNTIME if ratio else None,
            "error": self.race.get("error"),
            "float64_error": self.race.get("float64_error"),
            "peer_float64_error": self.race.get("peer_float64_error"),
            "cold_start": started(self.cold),
            "warm_start": started(self.warm),
            "import": self.cold.get("import"),
            "peer_load": self.race.get("peer_load"),
            "rounds": max((len(each) for each in self.race.get("seconds", {}).values()), default=0),
            "failures": ({WEFT: self.failure} if self.failure else {}) | self.race.get("failures", {}),
            "wrong": {WEFT: f"differs by {self.race.get('error', 0.0):.1e}"} if self.wrong else {},
        }


def allowed_error(peers: float) -> float:
    """How far from float64 results may be, given how far a peer's are: twice as far, or 2 ulp."""
    return max(2 * peers, 2 * _ULP)


def started(times: dict[str, Any]) -> float | None:
    """Seconds from the file to the first result."""
    return times["load"] + times["first_call"] if times else None


def bench_onnx(terminal: Terminal, request: OnnxBenchRequest) -> None:
    """Measure each model, show the table, and exit with 1 if one failed or differs from its peer."""
    if request.peer not in ("", ONNX_RUNTIME):
        raise UsageError(f"no peer is called {request.peer}", hint=f"there is {ONNX_RUNTIME}")
    if request.peer and (missing := missing_packages((ONNX_RUNTIME,))):
        raise MissingError(
            f"--peer {request.peer} needs {missing[0]}, which is not installed", hint="pip install onnxruntime"
        )
    for path in request.models:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="give the model's file: weft bench model.onnx")
        request.settings(path)
    write_bytecode()
    results: list[OnnxResult] = []
    for number, path in enumerate(request.models, 1):
        with watching(terminal, f"{number}/{len(request.models)} {path.name}") as watcher:
            results.append(measured := measure(path, request, watcher.say))
            watcher.done(measured.failure or "measured")
    terminal.show(_table(results))
    ratios = [ratio.median for each in results if (ratio := each.ratio) is not None]
    if ratios:
        terminal.show(f"geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    for each in results:
        if each.failure:
            terminal.show(Text(f"{each.name}: {each.failure}"))
    ok = all(each.ok for each in results)
    clock = "processor" if request.processor_time else "wall"
    summary = {
        "clock": clock,
        "geomean": geometric_mean(ratios) if ratios else None,
        "worst": min(ratios, default=None),
    }
    terminal.finish({"ok": ok, **summary, "cases": [each.figures() for each in results]}, code=0 if ok else 1)


def measure(path: Path, request: OnnxBenchRequest, say: Progress) -> OnnxResult:
    """Two processes for a model: the first fills the cache and races, the second starts from it."""
    settings = request.settings(path)
    name, threads, tolerance = path.stem, request.thread_count, request.tolerance
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        environment = {"WEFT_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads)}
        cold: dict[str, Any] = {}
        try:
            with Child("weft.testing.bench.onnx_child", settings, environment) as child:
                say("first start")
                cold = _asked(child, {"do": "start"})
                say("taking turns")
                turns = {"do": "race", "peer": request.peer, "rounds": request.rounds, "seconds": request.seconds}
                turns["float64"] = request.float64
                race = _asked(child, turns)
            with Child("weft.testing.bench.onnx_child", settings, environment) as child:
                say("second start")
                warm = _asked(child, {"do": "start"})
        except WeftError as error:
            return OnnxResult(name, threads, cold, {}, {}, tolerance, error.message)
    return OnnxResult(name, threads, cold, warm, race, tolerance)


def _asked(child: Child, what: dict[str, Any]) -> dict[str, Any]:
    child.send(what)
    found = child.receive(START_SECONDS)
    if found is None:
        raise WeftError(child.epitaph(START_SECONDS))
    if not found["ok"]:
        raise WeftError(found["said"])
    return found


def _table(results: Sequence[OnnxResult]) -> Table:
    table = Table(title="ONNX models", title_justify="left")
    table.add_column("model")
    judged = any("float64_error" in each.race for each in results)
    for heading in (
        *("weft ms", "onnxruntime ms", "times as fast", "error"),
        *(("error to float64", "onnxruntime's") if judged else ()),
        *("cold s", "warm s", "onnxruntime's load s"),
    ):
        table.add_column(heading, justify="right")
    for each in results:
        error = each.race.get("error")
        shown = "" if error is None else f"{error:.1e}{' wrong' if each.wrong else ''}"
        times = [_shown(each.median(who), 1e3) for who in (WEFT, ONNX_RUNTIME)]
        starts = [_shown(started(each.cold)), _shown(started(each.warm)), _shown(each.race.get("peer_load"))]
        exact = [_power(each.race.get(key)) for key in ("float64_error", "peer_float64_error")] if judged else []
        ratio = "failed" if each.failure else str(each.ratio or "")
        table.add_row(Text(each.name), *times, ratio, shown, *exact, *starts)
    return table


def _shown(seconds: float | None, scale: float = 1.0) -> str:
    return "" if seconds is None else f"{seconds * scale:.3g}"


def _power(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"


def _named(texts: Sequence[str], example: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not name or not equals:
            raise UsageError(f"{text} has no name", hint=example)
        found.append((name, value))
    return found


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text} is no {what}", hint="sizes are numbers: 1x3x224x224")
    return int(text)
