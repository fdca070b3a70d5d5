"""`weft bench libraries`: kernels of flash-linear-attention and Liger with Weft and with Triton, in turns.

Each side has a process and an empty cache: the first calls compile and tune, the calls after that are measured, some
of one side, some of the other. Rows go to a journal as they come, from which a run that was ended goes on.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from weft.errors import WeftError
from weft.testing.bench.benchmark import geometric_mean
from weft.testing.bench.bytecode import write_bytecode
from weft.testing.child import Child
from weft.testing.conformance.journal import Journal, commit
from weft.testing.triton.kernel_libraries import library_at
from weft.testing.triton.library_cases import CASES
from weft.testing.triton.library_plugin import real_triton
from weft.tools.bench.cpu import watching
from weft.tools.terminal import Terminal, UsageError, check_folder

JOURNAL = "bench-libraries.jsonl"
_TURNS = 3
_CASE_SECONDS = 300.0
_ALLOWED = 2e-2
"""How far apart the norms of two results in bf16 may be."""


@dataclass(frozen=True)
class LibraryBenchRequest:
    """What the command line asks for."""

    libraries: tuple[str, ...]
    patterns: tuple[str, ...]
    device: str
    seconds: float
    budget: float
    shrink: int
    resume: bool
    reports: Path

    def paths(self) -> list[str]:
        """Where the libraries are imported from: a checkout's sources, or nothing for an installed package."""
        folders = [library_at(each).absolute() for each in self.libraries]
        return [str(place) for folder in folders for place in (folder / "src", folder) if place.is_dir()]


def bench_libraries(terminal: Terminal, request: LibraryBenchRequest) -> None:
    """Measure each case, show the table, and exit with 1 if one failed or the two sides differ."""
    if request.device not in ("cpu", "cuda"):
        raise UsageError(f"there is no device {request.device}", hint="give --device cpu or cuda")
    check_folder(request.reports, "--reports")
    names = [
        case.name for case in CASES if not request.patterns or any(fnmatchcase(case.name, p) for p in request.patterns)
    ]
    if not names:
        raise UsageError("no case has such a name", hint=f"there are {', '.join(case.name for case in CASES)}")
    sides = ("weft", "triton") if request.device == "cuda" and real_triton() else ("weft",)
    journal = Journal(request.reports / JOURNAL, f"{commit()} {request.device} {request.shrink}")
    if not request.resume:
        journal.forget(set(names))
    rows = {name: row for name, row in journal.results().items() if name in names}
    write_bytecode()
    end = time.monotonic() + request.budget
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        children = {side: _child(side, request, folder) for side in sides}
        try:
            for number, name in enumerate(names, 1):
                if name in rows or time.monotonic() >= end:
                    continue
                with watching(terminal, f"{number}/{len(names)} {name}") as watcher:
                    rows[name] = _measured(name, children, request.seconds)
                    journal.add(name, rows[name])
                    watcher.done(rows[name].get("failure", "measured"))
        finally:
            for child in children.values():
                child.stop()
    _finish(terminal, [rows[name] for name in names if name in rows], len(names))


def _child(side: str, request: LibraryBenchRequest, folder: str) -> Child:
    caches = {"WEFT_CACHE_DIR": os.path.join(folder, "weft"), "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
    settings = {"side": side, "device": request.device, "shrink": request.shrink, "paths": request.paths()}
    return Child("weft.testing.triton.library_child", settings, caches)


def _measured(name: str, children: dict[str, Child], seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    try:
        for side, child in children.items():
            found = _asked(child, {"do": "first", "case": name}, side)
            row[side] = {**found, "forward": [], "backward": []}
        for _ in range(_TURNS):
            for side, child in children.items():
                found = _asked(child, {"do": "time", "seconds": seconds / _TURNS / 2}, side)
                for way in ("forward", "backward"):
                    row[side][way].append(statistics.median(found[way]))
    except WeftError as error:
        return {"name": name, "failure": error.message}
    for side in children:
        for way in ("forward", "backward"):
            row[side][way] = statistics.median(row[side][way])
    if len(children) > 1:
        row["ratio"] = {way: row["triton"][way] / row["weft"][way] for way in ("forward", "backward")}
        row["first_ratio"] = sum(row["triton"]["first"]) / sum(row["weft"]["first"])
        pairs = zip(row["weft"]["norms"], row["triton"]["norms"], strict=True)
        row["same"] = all(math.isclose(ours, theirs, rel_tol=_ALLOWED, abs_tol=1e-6) for ours, theirs in pairs)
    return row


def _asked(child: Child, what: dict[str, Any], side: str) -> dict[str, Any]:
    child.send(what)
    found = child.receive(_CASE_SECONDS)
    if found is None:
        raise WeftError(f"{side}: {child.epitaph(_CASE_SECONDS)}")
    if not found["ok"]:
        raise WeftError(f"{side}: {found['said']}")
    return found


def _finish(terminal: Terminal, rows: Sequence[dict[str, Any]], chosen: int) -> None:
    terminal.show(_table(rows))
    for row in rows:
        if "failure" in row:
            terminal.show(Text(f"{row['name']}: {row['failure']}"))
    ratios = [ratio for row in rows for ratio in row.get("ratio", {}).values()]
    first = [row["first_ratio"] for row in rows if "first_ratio" in row]
    summary: dict[str, Any] = {"measured": len(rows), "chosen": chosen}
    if ratios:
        summary |= {"geomean": geometric_mean(ratios), "worst": min(ratios)}
        summary |= {"first_geomean": geometric_mean(first), "first_worst": min(first)}
        terminal.show(
            f"times as fast as Triton: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f};"
            f" first calls: {geometric_mean(first):.2f}, least {min(first):.2f}"
        )
    if len(rows) < chosen:
        terminal.show(f"{chosen - len(rows)} of {chosen} cases are left: --resume goes on with them")
    ok = len(rows) == chosen and all("failure" not in row and row.get("same", True) for row in rows)
    terminal.finish({"ok": ok, **summary, "cases": list(rows)}, code=0 if ok else 1)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Kernels of libraries", title_justify="left")
    table.add_column("case")
    for heading in ("forward ms", "Triton", "ratio", "backward ms", "Triton", "ratio", "first s", "Triton", "same"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "failure" in row:
            continue
        ours, theirs, ratio = row["weft"], row.get("triton"), row.get("ratio")
        cells: list[str] = []
        for way in ("forward", "backward"):
            cells += [f"{ours[way]:.3f}", f"{theirs[way]:.3f}" if theirs else "", f"{ratio[way]:.2f}" if ratio else ""]
        cells += [f"{sum(ours['first']):.2f}", f"{sum(theirs['first']):.2f}" if theirs else ""]
        same = "" if "same" not in row else "yes" if row["same"] else "NO"
        table.add_row(row["name"], *cells, same)
    return table
