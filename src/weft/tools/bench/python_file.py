"""`weft bench FILE`: every `perf_report` of a Python file measured; tables, CSV and charts of it.

`import triton` in the file finds Weft. The file is run as a module, not as a script, so that what it does under
`if __name__ == "__main__"` is left out.
"""

from __future__ import annotations

import runpy
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from weft.frontends.triton.enable import enable
from weft.testing.bench.perf_report import Mark, Measured
from weft.tools.terminal import Terminal, UsageError, check_folder


def bench_file(terminal: Terminal, file: Path, patterns: tuple[str, ...], reports: Path) -> None:
    """Measure the file's benchmarks, print their tables, and write them with charts to a folder."""
    check_folder(reports, "--reports")
    with enable():
        results = _measured(terminal, file, patterns)
    written: list[Path] = []
    for measured in results:
        terminal.show(_table(measured))
        written += measured.save(reports)
    for path in written:
        terminal.err.print(f"written: {path}", highlight=False)
    figures = [{"name": each.benchmark.plot_name, "columns": each.header, "rows": each.table()} for each in results]
    terminal.finish({"ok": True, "benchmarks": figures, "written": [str(path) for path in written]})


def _measured(terminal: Terminal, file: Path, patterns: tuple[str, ...]) -> list[Measured]:
    if not file.is_file():
        raise UsageError(f"there is no file {file}", hint="`weft bench cpu` measures Weft's own cases")
    wanted = [
        (mark, benchmark)
        for mark in _marks(file)
        for benchmark in mark.all_benchmarks()
        if not patterns or any(fnmatchcase(benchmark.plot_name, pattern) for pattern in patterns)
    ]
    if not wanted:
        raise UsageError(f"{file} has no benchmark to run", hint="decorate a function with triton.testing.perf_report")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = terminal.err.is_terminal and not terminal.json
    results: list[Measured] = []
    with Progress(*columns, console=terminal.err, disable=not shown, transient=True) as progress:
        total = sum(len(benchmark.x_vals) * len(benchmark.line_vals) for _, benchmark in wanted)
        task = progress.add_task("measuring", total=total)

        def advance(what: str) -> None:
            progress.update(task, advance=1, description=what)

        for mark, benchmark in wanted:
            results.append(mark.measure(benchmark, advance))
    return results


def _marks(file: Path) -> list[Mark]:
    kept = sys.path
    sys.path = [str(file.resolve().parent), *sys.path]
    try:
        found: dict[str, Any] = runpy.run_path(str(file), run_name="__weft_bench__")
    finally:
        sys.path = kept
    return [value for value in found.values() if isinstance(value, Mark)]


def _table(measured: Measured) -> Table:
    table = Table(title=measured.benchmark.plot_name, title_justify="left")
    for name in measured.header:
        table.add_column(Text(name), justify="right")
    for row in measured.table():
        table.add_row(*(f"{each:.4g}" if isinstance(each, float) else str(each) for each in row))
    return table
