"""What `weft bench` found, as tables, charts, Markdown and plain data."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weft import __version__
from weft.backends.cpu.target import host_target
from weft.testing.bench.benchmark import COMPILED, EAGER, EXACT, INDUCTOR, ONNX_RUNTIME, WEFT, Race, geometric_mean
from weft.testing.bench.benchmark_case import CONTENDERS, SOMETIMES, CaseResult
from weft.testing.bench.charts import Bar, Chart, write_chart
from weft.testing.compile_times import WARM, CompileResult, compile_ratio
from weft.testing.conformance.journal import commit
from weft.testing.devices import Device
from weft.testing.peak_memory import MemoryResult
from weft.tools.terminal import UsageError, check_file, counted

# A case is lost when the whole interval of its ratio lies below this.
LOST_BELOW = 0.95


def machine(threads: int, device: Device | None = None) -> str:
    """The machine and the versions, in a line: figures belong to them."""
    target, cores = host_target(), os.cpu_count() or 1
    parts = [f"{target.cpu} ({platform.machine()}, {target.vector_bits}-bit vectors), {cores} cores, {threads} threads"]
    if device is not None and device.name != "cpu":
        about = device.described()
        parts = [f"{about['gpu']}, driver {about['driver']}, CUDA {about['cuda']}"]
    parts.append(f"torch {torch.__version__}, Python {platform.python_version()}, Weft {__version__}, {date.today()}")
    return "; ".join(parts)


@dataclass
class Results:
    """Everything that one run measured."""

    machine: str
    timed: list[CaseResult] = field(default_factory=list[CaseResult])
    compiled: list[CompileResult] = field(default_factory=list[CompileResult])
    weighed: list[MemoryResult] = field(default_factory=list[MemoryResult])
    left_out: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        return all(result.ok for result in (*self.timed, *self.compiled, *self.weighed))

    def suites(self) -> dict[str, list[CaseResult]]:
        """The timed cases by suite, in order."""
        return {suite: list(found) for suite, found in groupby(self.timed, key=lambda result: result.suite)}

    def figures(self) -> dict[str, Any]:
        """The results as plain data; seconds, and ratios that are above 1 where Weft is faster."""
        return {
            "ok": self.ok,
            "machine": self.machine,
            "architecture": platform.machine(),
            "cpu": host_target().cpu,
            "threads": torch.get_num_threads(),
            "commit": commit(),
            "left_out": self.left_out,
            **summary(self.timed),
            **self._compile_figures(),
            **self._memory_figures(),
            "suites": {suite: summary(found) for suite, found in self.suites().items()},
            "cases": [each.figures() for each in (*self.timed, *self.compiled, *self.weighed)],
        }

    def _compile_figures(self) -> dict[str, Any]:
        """From the suite `compile` where it ran; from the first calls of the cases, in this process, where not."""
        if not self.compiled:
            return {"compile_ratio": _ratio_in_process(self.timed)}
        warm = [result.backend(WARM) for result in self.compiled]
        return {
            "compile_ratio": compile_ratio(self.compiled),
            "first_call_ratio": compile_ratio(self.compiled, first_call=True),
            "warm_seconds": max((seconds for seconds in warm if seconds is not None), default=None),
        }

    def _memory_figures(self) -> dict[str, Any]:
        """The worst model's growth over eager's, and the largest share of packed weights in a model's own."""
        if not self.weighed:
            return {}
        ratios = [ratio for each in self.weighed if (ratio := each.ratio) is not None]
        packed = [found.packed / max(found.weights, 1) for each in self.weighed if (found := each.taken.get(WEFT))]
        return {"memory_ratio": max(ratios, default=None), "packed_share": max(packed, default=None)}

    def tables(self) -> list[RenderableType]:
        """For people to read."""
        parts: list[RenderableType] = []
        for suite, found in self.suites().items():
            parts += [_timed_table(suite, found), Text(_in_words(summary(found)) or "no case has a peer here")]
        if self.compiled:
            parts += [_compile_table(self.compiled), Text(_in_words(self._compile_figures()))]
        if self.weighed:
            parts += [_memory_table(self.weighed), Text(_in_words(self._memory_figures()))]
        parts += [Text(f"left out: {note}") for note in self.left_out]
        return [*parts, Text(self.machine, style="dim")]

    def write(self, folder: Path) -> list[Path]:
        """Charts and a Markdown table for each suite, in a folder."""
        written: list[Path] = []
        for suite, found in self.suites().items():
            written += write_chart(_speed_chart(suite, found, self.machine), folder / f"bench-{suite}")
        if self.compiled:
            written += write_chart(_compile_chart(self.compiled, self.machine), folder / "bench-compile")
        for suite, text in self.markdown().items():
            written.append(folder / f"bench-{suite}.md")
            written[-1].write_text(text, encoding="utf-8")
        return written

    def keep(self, folder: Path | None, name: str) -> list[Path]:
        """The figures as a file of a folder of results, where there is one: by date, commit and name."""
        if folder is None:
            return []
        path = folder / f"{date.today()}-{commit()}-{name}.json"
        path.write_text(json.dumps(self.figures(), indent=1) + "\n", encoding="utf-8")
        return [path]

    def markdown(self) -> dict[str, str]:
        """A table for each suite, what it amounts to, and the machine."""
        texts = {
            suite: f"{_markdown(*_timed(found))}\n{_in_words(summary(found))}" for suite, found in self.suites().items()
        }
        if self.compiled:
            table = _markdown(_COMPILED, map(_compile_row, self.compiled))
            texts["compile"] = f"{table}\n{_in_words(self._compile_figures())}"
        if self.weighed:
            texts["memory"] = (
                f"{_markdown(_WEIGHED, map(_memory_row, self.weighed))}\n{_in_words(self._memory_figures())}"
            )
        return {suite: f"{text}\n\n{self.machine}\n" for suite, text in texts.items()}


def check_text(path: Path | None, suites: Iterable[str]) -> None:
    """Say at once that there is no text for tables, or that it has no places for those of some suites."""
    if path is not None:
        check_file(path, "--into", exists=True)
        _inserted(path, dict.fromkeys(suites, ""))


def insert(path: Path, tables: Mapping[str, str]) -> None:
    """Put tables into a text, each in place of what stands between `<!-- bench NAME -->` and `<!-- end -->`."""
    path.write_text(_inserted(path, tables), encoding="utf-8")


def _inserted(path: Path, tables: Mapping[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for suite, table in tables.items():
        start = f"<!-- bench {suite} -->\n"
        before, mark, rest = text.partition(start)
        _, end, after = rest.partition("<!-- end -->")
        if not mark or not end:
            raise UsageError(
                f"{path} has no place for the suite {suite}", hint=f"write `{start.strip()}` and `<!-- end -->` into it"
            )
        text = f"{before}{start}\n{table}\n{end}{after}"
    return text


def summary(results: Sequence[CaseResult]) -> dict[str, Any]:
    """The geometric mean and the worst of the ratios, and the cases that are lost for certain."""
    ratios = {result.name: ratio for result in results if (ratio := result.ratio) is not None}
    worst = min(ratios, key=lambda name: ratios[name].median, default=None)
    return {
        "geomean": geometric_mean([ratio.median for ratio in ratios.values()]) if ratios else None,
        "worst": ratios[worst].median if worst is not None else None,
        "worst_case": worst,
        "lost": [name for name, ratio in ratios.items() if ratio.high < LOST_BELOW],
        "compile_ratio": _ratio_in_process(results),
    }


def _ratio_in_process(results: Sequence[CaseResult]) -> float | None:
    both = [each.backend_seconds for each in results if {INDUCTOR, WEFT} <= each.backend_seconds.keys()]
    return sum(each[WEFT] for each in both) / sum(each[INDUCTOR] for each in both) if both else None


def _in_words(figures: dict[str, Any]) -> str:
    said: list[str] = []
    if figures.get("geomean") is not None:
        said.append(f"geometric mean {figures['geomean']:.2f} × the best peer's speed")
        said.append(f"worst {figures['worst']:.2f} ({figures['worst_case']})")
        said.append(f"{counted(len(figures['lost']), 'case')} surely below {LOST_BELOW}")
    if figures.get("compile_ratio"):
        said.append(f"compiles inside the backend at {1 / figures['compile_ratio']:.2f} × Inductor's speed")
    if figures.get("first_call_ratio"):
        said.append(f"first calls at {1 / figures['first_call_ratio']:.2f} × Inductor's speed")
    if figures.get("warm_seconds") is not None:
        said.append(f"from the disk cache at most {figures['warm_seconds']:.2f} s inside the backend")
    if figures.get("memory_ratio"):
        said.append(f"eager takes at least {1 / figures['memory_ratio']:.2f} × Weft's memory")
    if figures.get("packed_share") is not None:
        said.append(f"packed weights at most {figures['packed_share']:.2f} × the weights' own")
    return "; ".join(said)


_WEIGHED = ("model", "eager, MB", "Weft, MB", "eager / Weft", "packed, MB", "weights, MB", "")
_NAMES = {
    EAGER: "eager",
    INDUCTOR: "Inductor",
    ONNX_RUNTIME: "ONNX Runtime",
    COMPILED: "torch.func by Weft",
    WEFT: "Weft",
}
_COMPILED = ("model", "Inductor, s", "Weft, s", "warm, s", "first calls: Inductor, s", "Weft, s", "warm, s", "")


def _timed(results: Sequence[CaseResult]) -> tuple[list[str], list[list[str]]]:
    """The columns of a suite's table, and its rows. Some have a column only where they took part."""
    shown = _shown(results)
    times = [f"{_NAMES[name]}, ms" for name in shown]
    columns = ["case", *times, "× best peer (95%)", "compile: Inductor, Weft, s", ""]
    return columns, [_timed_row(result, shown) for result in results]


def _shown(results: Sequence[CaseResult]) -> list[str]:
    there = {name for each in results for name in (*each.race.timings, *each.race.failures)}
    return [name for name in CONTENDERS if name not in SOMETIMES or name in there]


def _timed_row(result: CaseResult, shown: Sequence[str]) -> list[str]:
    times = [_milliseconds(result.race, name) for name in shown]
    compiling = ", ".join(_number(result.backend_seconds.get(name)) for name in (INDUCTOR, WEFT))
    return [
        result.name,
        *times,
        str(result.ratio or "–"),
        compiling,
        "; ".join(filter(None, [_against_exact(result), result.trouble])),
    ]


def _against_exact(result: CaseResult) -> str:
    """Of a quantized case: how long it takes in f32, and how near it comes to that."""
    if result.cosine is None:
        return ""
    return f"Weft in f32 takes {_milliseconds(result.race, EXACT)} ms; cosine {result.cosine:.5f}"


def _compile_row(result: CompileResult) -> list[str]:
    whos = (INDUCTOR, WEFT, WARM)
    inside, whole = [result.backend(who) for who in whos], [result.first_call(who) for who in whos]
    return [result.name, *map(_number, inside), *map(_number, whole), result.trouble]


def _memory_row(result: MemoryResult) -> list[str]:
    grown = [_megabytes(result.taken[who].growth if who in result.taken else None) for who in (EAGER, WEFT)]
    found = result.taken.get(WEFT)
    others = [_megabytes(found and found.packed), _megabytes(found and found.weights)]
    return [result.name, *grown, _number(1 / result.ratio if result.ratio else None), *others, result.trouble]


def _megabytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:.1f}"


def line(result: CaseResult | CompileResult | MemoryResult) -> str:
    """A result in a line, for progress."""
    if isinstance(result, CaseResult):
        shown = _shown([result])
        names, row = (*shown, "ratio"), _timed_row(result, shown)
    elif isinstance(result, MemoryResult):
        names, row = ("eager MB", "weft MB", "ratio", "packed MB", "weights MB"), _memory_row(result)
    else:
        names, row = ("inductor", "weft", "warm"), _compile_row(result)
    said = ", ".join(f"{name} {text}" for name, text in zip(names, row[1:], strict=False))
    notes = [row[-1]] if row[-1] else []
    return "; ".join([said, *notes])


def _milliseconds(race: Race, name: str) -> str:
    if name not in race.timings:
        return "failed" if name in race.failures else "–"
    timing = race.timings[name]
    return f"{timing.median * 1e3:.4g} ±{timing.spread / 2:.0%}"


def _number(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f}"


def _timed_table(suite: str, results: Sequence[CaseResult]) -> Table:
    return _table(f"{suite}: medians, ± half the distance of the quartiles", *_timed(results))


def _compile_table(results: Sequence[CompileResult]) -> Table:
    return _table("compile: inside the backend, and whole first calls", _COMPILED, map(_compile_row, results))


def _memory_table(results: Sequence[MemoryResult]) -> Table:
    return _table("memory: growth of the peak over calls", _WEIGHED, map(_memory_row, results))


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if 0 < number < len(columns) - 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *("---:" for _ in columns[2:]), "---"], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in each)} |\n" for each in lines)


def _speed_chart(suite: str, results: Sequence[CaseResult], note: str) -> Chart:
    groups: dict[str, list[Bar]] = {}
    for result in results:
        timings = result.race.timings
        if EAGER not in timings:
            continue
        speeds = {name: timings[EAGER].median / timings[name].median for name in CONTENDERS[1:] if name in timings}
        groups[result.name] = [Bar(name, speed, f"{speed:.2f}×") for name, speed in speeds.items()]
    return Chart(f"{suite}: speed relative to eager (dashed); longer is better", groups, note, line=1.0)


def _compile_chart(results: Sequence[CompileResult], note: str) -> Chart:
    groups: dict[str, list[Bar]] = {}
    for result in results:
        seconds = {who: result.backend(who) for who in (INDUCTOR, WEFT, WARM)}
        groups[result.name] = [Bar(who, took, f"{took:.2f} s") for who, took in seconds.items() if took is not None]
    return Chart("compile: seconds inside the backend; shorter is better", groups, note)
