"""`perf_report`: a function measured over sizes and providers; a table, a CSV file and line charts come of it.

`weft bench FILE` and a file's own `benchmark.run(...)` come here. Charts are SVG, and PNG where matplotlib is.
"""

# Points and results may be anything.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import csv
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.testing.bench.line_charts import Line, LineChart, write_line_chart


class PerfReportError(WeftError, ValueError):
    """A benchmark whose names and values do not fit together."""


class Benchmark:
    """What to measure: values for the x axis, and an argument whose values are the lines."""

    def __init__(
        self,
        x_names: Sequence[str],
        x_vals: Sequence[Any],
        line_arg: str,
        line_vals: Sequence[Any],
        line_names: Sequence[str],
        plot_name: str,
        args: Mapping[str, Any],
        xlabel: str = "",
        ylabel: str = "",
        x_log: bool = False,
        y_log: bool = False,
        styles: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        self.x_names, self.x_vals = list(x_names), list(x_vals)
        self.line_arg, self.line_vals, self.line_names = line_arg, list(line_vals), list(line_names)
        self.plot_name, self.args = plot_name, dict(args)
        self.xlabel, self.ylabel, self.x_log, self.y_log = xlabel, ylabel, x_log, y_log
        self.styles = styles

    def point(self, x: Any) -> dict[str, Any]:
        """The arguments at one place of the x axis."""
        values = list(x) if isinstance(x, list | tuple) else [x] * len(self.x_names)
        if len(values) != len(self.x_names):
            raise PerfReportError(f"{self.plot_name}: expected {len(self.x_names)} values, got {x}")
        return dict(zip(self.x_names, values, strict=True))


@dataclass
class Measured:
    """What a benchmark gave: for each place of the x axis, a value (with a lower and an upper one) for each line."""

    benchmark: Benchmark
    points: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rows: list[list[tuple[float, float | None, float | None]]] = field(
        default_factory=list[list[tuple[float, float | None, float | None]]]
    )

    @property
    def header(self) -> list[str]:
        unit = f" ({self.benchmark.ylabel})" if self.benchmark.ylabel else ""
        return [*self.benchmark.x_names, *(name + unit for name in self.benchmark.line_names)]

    def table(self) -> list[list[Any]]:
        """The middle values, a row for each place."""
        return [
            [*point.values(), *(value for value, _, _ in row)]
            for point, row in zip(self.points, self.rows, strict=True)
        ]

    def chart(self) -> LineChart:
        benchmark = self.benchmark
        first = [next(iter(point.values())) for point in self.points]
        places = [float(x) if isinstance(x, int | float) else float(n) for n, x in enumerate(first)]
        lines: list[Line] = []
        for n, name in enumerate(benchmark.line_names):
            color, style = benchmark.styles[n] if benchmark.styles else (None, "-")
            column = [row[n] for row in self.rows]
            known = all(low is not None and high is not None for _, low, high in column)
            low = [low for _, low, _ in column] if known else []
            high = [high for _, _, high in column] if known else []
            lines.append(Line(name, [value for value, _, _ in column], low, high, color, style))
        xlabel = benchmark.xlabel or benchmark.x_names[0]
        return LineChart(benchmark.plot_name, places, lines, xlabel, benchmark.ylabel, benchmark.x_log, benchmark.y_log)

    def save(self, folder: Path, precision: int = 6) -> list[Path]:
        """Write the table as CSV and the chart as SVG and PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark.plot_name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.header)
            for row in self.table():
                writer.writerow([f"{each:.{precision}f}" if isinstance(each, float) else each for each in row])
        return [path, *write_line_chart(self.chart(), folder / self.benchmark.plot_name)]

    def __str__(self) -> str:
        texts = [self.header, *([_shown(each) for each in row] for row in self.table())]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in texts]
        return "\n".join([f"{self.benchmark.plot_name}:", *lines])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Mark:
    """A function with the benchmarks to run it over."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | Sequence[Benchmark]) -> None:
        self.fn, self.benchmarks = fn, benchmarks
        self.__name__ = getattr(fn, "__name__", "benchmark")

    def all_benchmarks(self) -> list[Benchmark]:
        return [self.benchmarks] if isinstance(self.benchmarks, Benchmark) else list(self.benchmarks)

    def measure(self, benchmark: Benchmark, on_progress: Callable[[str], None] | None = None, **more: Any) -> Measured:
        """Call the function for every place and line; `on_progress` is told what was measured."""
        measured = Measured(benchmark)
        for x in benchmark.x_vals:
            point = benchmark.point(x)
            row: list[tuple[float, float | None, float | None]] = []
            for line in benchmark.line_vals:
                given = self.fn(**point, **{benchmark.line_arg: line}, **benchmark.args, **more)
                middle, low, high = given if isinstance(given, tuple | list) else (given, None, None)
                row.append((middle, low, high))
                if on_progress is not None:
                    on_progress(f"{benchmark.plot_name} {line} {x}")
            measured.points.append(point)
            measured.rows.append(row)
        return measured

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str | Path = "",
        return_df: bool = False,
        diff_col: bool = False,
        save_precision: int = 6,
        **more: Any,
    ) -> Any:
        """Measure; print tables, write them with charts to `save_path`, give data frames (where pandas is installed).

        `show_plots` is for notebooks on a screen: charts are files here, and their names are printed.
        """
        results: list[Measured] = []
        folder = Path(save_path) if save_path else Path("reports") if show_plots else None
        for benchmark in self.all_benchmarks():
            measured = self.measure(benchmark, **more)
            results.append(measured)
            if print_data:
                print(measured)
            if folder is not None:
                for path in measured.save(folder, save_precision):
                    if show_plots:
                        print(path)
        if folder is not None:
            _write_index(folder, results)
        if not return_df:
            return None
        frames = [_frame(measured, diff_col) for measured in results]
        return frames[0] if isinstance(self.benchmarks, Benchmark) else frames


def _write_index(folder: Path, results: Sequence[Measured]) -> None:
    images = "".join(f'<img src="{escape(each.benchmark.plot_name)}.svg"/>\n' for each in results)
    (folder / "results.html").write_text(f"<html><body>\n{images}</body></html>\n", encoding="utf-8")


def _frame(measured: Measured, difference: bool) -> Any:
    """A pandas data frame where pandas is installed, else the rows as dictionaries."""
    header, rows = measured.header, measured.table()
    if difference and len(measured.benchmark.line_names) == 2:
        header, rows = [*header, "Diff"], [[*row, row[-1] - row[-2]] for row in rows]
    if importlib.util.find_spec("pandas") is None:
        return [dict(zip(header, row, strict=True)) for row in rows]
    pandas: Any = importlib.import_module("pandas")
    return pandas.DataFrame(rows, columns=header)


def perf_report(benchmarks: Benchmark | Sequence[Benchmark]) -> Callable[[Callable[..., Any]], Mark]:
    """Make a function something to be measured: `.run(print_data=True, save_path=...)`, or `weft bench FILE`."""
    return lambda fn: Mark(fn, benchmarks)
