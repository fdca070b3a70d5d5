"""Tables of several runs of `weft bench cpu`, side by side: a column for each processor and number of threads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from weft.errors import WeftError
from weft.testing.bench.benchmark import geometric_mean
from weft.tools.terminal import counted

Row: TypeAlias = Mapping[str, Any]

_MACHINE = re.compile(r"^\S+ \((?P<architecture>\w+),.* (?P<threads>\d+) threads;")
_NAMES = {"aarch64": "AArch64", "x86_64": "x86-64"}
_PEERS = {"inductor": "Inductor", "onnxruntime": "ONNX Runtime", "weft f32": "Weft in f32"}
LOST_BELOW = 0.95


@dataclass(frozen=True)
class CpuResults:
    """What one run measured, where, and the file that says so."""

    machine: str
    architecture: str
    threads: int
    rows: tuple[Row, ...]
    file: str

    @property
    def place(self) -> str:
        return f"{_NAMES.get(self.architecture, self.architecture)}, {counted(self.threads, 'thread')}"


@dataclass(frozen=True)
class _Table:
    """How the rows of a suite are shown: the columns of a place, what stands in them, and what they amount to."""

    columns: tuple[str, ...]
    needs: frozenset[str]
    cells: Callable[[Row], list[str]]
    in_words: Callable[[Sequence[Row]], str]


def read_cpu_results(path: Path) -> CpuResults | None:
    """A file that holds what `weft bench cpu --json` printed; None if it holds something else."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeftError(f"{path} cannot be read: {error}") from error
    given: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    said = _MACHINE.match(str(given.get("machine", "")))
    if said is None:
        return None
    cases: list[dict[str, Any]] = given.get("cases", [])
    rows = tuple(row for row in cases if "suite" in row and _table(row["suite"]).needs <= row.keys())
    return CpuResults(said.string, said["architecture"], int(said["threads"]), rows, path.name)


def side_by_side(results: Sequence[CpuResults]) -> dict[str, str]:
    """A table for each suite; of a case that stands in several files of one place, the last counts."""
    suites: dict[str, dict[str, dict[str, tuple[CpuResults, Row]]]] = {}
    for each in results:
        for row in each.rows:
            suites.setdefault(row["suite"], {}).setdefault(row["name"], {})[each.place] = each, row
    places = list(dict.fromkeys(each.place for each in results))
    texts: dict[str, str] = {}
    for suite, cases in suites.items():
        table = _table(suite)
        shown = [place for place in places if any(place in found for found in cases.values())]
        head = ["case", *(f"{place}: {what}" for place in shown for what in table.columns)]
        lines = [head, ["---", *("---:" for _ in head[1:])]]
        for name, found in cases.items():
            cells = [table.cells(found[place][1]) if place in found else ["–"] * len(table.columns) for place in shown]
            lines.append([name, *(cell for each in cells for cell in each)])
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        words = [
            f"{place}: {table.in_words([found[place][1] for found in cases.values() if place in found])}"
            for place in shown
        ]
        said = dict.fromkeys(f"{run.machine}; `{run.file}`" for found in cases.values() for run, _ in found.values())
        texts[suite] = "\n\n".join([text.rstrip(), "; ".join(words), *said]) + "\n"
    return texts


def is_right(row: Row) -> bool:
    """Whether Weft's results agreed with eager's: a wrong result has no speed."""
    return "weft" not in row.get("wrong", {})


def _timed_cells(row: Row) -> list[str]:
    if not is_right(row):
        return ["–", "wrong", "–"]
    if row.get("ratio") is None:
        return ["–", "–" if row.get("weft") is None else _ms(row["weft"]), "–"]
    peer = row.get("peer") or ""
    time = f"{_ms(row[peer])} ({_PEERS.get(peer, peer)})" if row.get(peer) is not None else "–"
    return [time, _ms(row["weft"]), f"{row['ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _timed_in_words(rows: Sequence[Row]) -> str:
    raced = [row for row in rows if row.get("ratio") is not None and is_right(row)]
    if not raced:
        return "no case has a peer here"
    ratios = {row["name"]: row["ratio"] for row in raced}
    worst = min(ratios, key=ratios.__getitem__)
    lost = sum(row["ratio_high"] < LOST_BELOW for row in raced)
    mean = geometric_mean(list(ratios.values()))
    return f"geometric mean {mean:.2f}, worst {ratios[worst]:.2f} ({worst}), {lost} surely below {LOST_BELOW}"


def _compile_cells(row: Row) -> list[str]:
    inside, whole = row["backend_seconds"], row["first_call"]
    theirs, mine, warm = (inside.get(who) for who in _COMPILERS)
    ratio = None if theirs is None or mine is None else theirs / mine
    return [_number(each) for each in (theirs, mine, ratio, warm, *(whole.get(who) for who in _COMPILERS))]


def _compile_in_words(rows: Sequence[Row]) -> str:
    said: list[str] = []
    for what, name in (("backend_seconds", "inside the backend"), ("first_call", "whole first calls")):
        both = [row[what] for row in rows if {"inductor", "weft"} <= row[what].keys()]
        if both:
            speed = sum(each["inductor"] for each in both) / sum(each["weft"] for each in both)
            said.append(f"{name} {speed:.2f} × Inductor's speed")
    return ", ".join(said) or "no case has a peer here"


def _memory_cells(row: Row) -> list[str]:
    grown = [row["peak_growth"].get(who) for who in ("eager", "weft")]
    ratio = 1 / row["memory_ratio"] if row.get("memory_ratio") else None
    mega = [None if each is None else each / 1e6 for each in (*grown, row.get("packed"), row.get("weights"))]
    return [_number(mega[0], 1), _number(mega[1], 1), _number(ratio), _number(mega[2], 1), _number(mega[3], 1)]


def _memory_in_words(rows: Sequence[Row]) -> str:
    ratios = {row["name"]: 1 / row["memory_ratio"] for row in rows if row.get("memory_ratio")}
    if not ratios:
        return "no case has a peer here"
    worst = min(ratios, key=ratios.__getitem__)
    return f"eager takes at least {ratios[worst]:.2f} × Weft's memory ({worst})"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


_COMPILERS = ("inductor", "weft", "weft_warm")
_TIMED = _Table(
    ("best peer, ms", "Weft, ms", "× best peer (95%)"),
    frozenset({"name", "ratio", "weft"}),
    _timed_cells,
    _timed_in_words,
)
_TABLES = {
    "compile": _Table(
        (
            *("Inductor, s", "Weft, s", "× Inductor", "Weft from disk, s"),
            *("first call: Inductor, s", "first call: Weft, s", "first call: from disk, s"),
        ),
        frozenset({"name", "backend_seconds", "first_call"}),
        _compile_cells,
        _compile_in_words,
    ),
    "memory": _Table(
        ("eager, MB", "Weft, MB", "eager / Weft", "packed weights, MB", "weights, MB"),
        frozenset({"name", "peak_growth"}),
        _memory_cells,
        _memory_in_words,
    ),
}


def _table(suite: str) -> _Table:
    return _TABLES.get(suite, _TIMED)
