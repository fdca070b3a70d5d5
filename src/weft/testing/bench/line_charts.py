"""Line charts for measurements over sizes: SVG written by hand, always; PNG where matplotlib is installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from weft.testing.bench.charts import has_matplotlib

PALETTE = ("#0f8b8d", "#e08e45", "#7b6fb5", "#9aa5b1", "#c2465c", "#4c78a8", "#6b8e23", "#b5895a")
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 56, 560, 300
_DASHES = {"--": "6 4", ":": "2 3", "-.": "6 3 2 3"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its name, a value for each place on the x axis (None where there is none), and how it is drawn."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    color: str | None = None
    style: str = "-"


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over common places on the x axis."""

    title: str
    places: Sequence[float]
    lines: Sequence[Line]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False

    def colors(self) -> list[str]:
        return [line.color or PALETTE[n % len(PALETTE)] for n, line in enumerate(self.lines)]


class _Axis:
    """Maps numbers to places in the picture, and chooses where ticks go."""

    def __init__(self, numbers: Sequence[float], log: bool, start: float, stop: float, from_zero: bool) -> None:
        self.log = log and all(number > 0 for number in numbers)
        finite = [number for number in numbers if math.isfinite(number)] or [0.0, 1.0]
        self.low, self.high = min(finite), max(finite)
        if from_zero and not self.log:
            self.low = min(self.low, 0.0)
        if self.low == self.high:
            self.high = self.low + 1.0
        self.start, self.stop = start, stop

    def place(self, number: float) -> float:
        scale = math.log if self.log else float
        share = (scale(number) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            low, high = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            step = max(1, (high - low) // 6)
            return [2.0**power for power in range(low, high + 1, step)]
        rough = (self.high - self.low) / 5
        magnitude = 10 ** math.floor(math.log10(rough))
        step = next(each * magnitude for each in (1, 2, 5, 10) if each * magnitude >= rough)
        first = math.ceil(self.low / step)
        return [count * step for count in range(first, math.floor(self.high / step) + 1)]


def line_svg(chart: LineChart) -> str:
    """The chart as an SVG picture."""
    values = [v for line in chart.lines for v in (*line.values, *line.low, *line.high) if v is not None]
    x = _Axis(chart.places, chart.x_log, _LEFT, _LEFT + _WIDTH, from_zero=False)
    y = _Axis(values, chart.y_log, _TOP + _HEIGHT, _TOP, from_zero=True)
    parts: list[str] = []
    for tick in x.ticks():
        at = x.place(tick)
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_TOP + _HEIGHT}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks():
        at = y.place(tick)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_LEFT + _WIDTH}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for n, (line, color) in enumerate(zip(chart.lines, chart.colors(), strict=True)):
        band = [(p, a, b) for p, a, b in zip(chart.places, line.low, line.high) if a is not None and b is not None]  # noqa: B905
        if band:
            edge = [(p, a) for p, a, _ in band] + [(p, b) for p, _, b in reversed(band)]
            parts.append(f'<polygon points="{_points(edge, x, y)}" fill="{color}" opacity="0.15"/>')
        known = [(p, v) for p, v in zip(chart.places, line.values, strict=True) if v is not None]
        dash = f' stroke-dasharray="{_DASHES[line.style]}"' if line.style in _DASHES else ""
        points = _points(known, x, y)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts.extend(f'<circle cx="{x.place(p):.1f}" cy="{y.place(v):.1f}" r="2.5" fill="{color}"/>' for p, v in known)
        left = _LEFT + (n % 4) * 145
        top = 30 + 15 * (n // 4)
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{left + 18}" y="{top + 10}">{escape(line.name)}</text>')
    width, height = _LEFT + _WIDTH + 30, _TOP + _HEIGHT + 46
    middle = _TOP + _HEIGHT / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12">\n<title>{escape(chart.title)}</title>\n'
        "<style>.grid { stroke: #e3e6ea }</style>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="14" y="20" font-weight="600" font-size="15">{escape(chart.title)}</text>\n'
        + "\n".join(parts)
        + f'\n<text x="{_LEFT + _WIDTH / 2:g}" y="{height - 8}" text-anchor="middle">{escape(chart.xlabel)}</text>\n'
        f'<text transform="translate(16 {middle:g}) rotate(-90)" text-anchor="middle">{escape(chart.ylabel)}</text>\n'
        "</svg>\n"
    )


def _points(places: Sequence[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    return " ".join(f"{x.place(place):.1f},{y.place(value):.1f}" for place, value in places)


def write_line_chart(chart: LineChart, path: Path) -> list[Path]:
    """Write `path`.svg and, where matplotlib is installed, `path`.png; gives the files written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.parent / f"{path.name}.svg"]
    written[0].write_text(line_svg(chart), encoding="utf-8")
    if has_matplotlib():
        written.append(path.parent / f"{path.name}.png")
        _write_png(chart, written[-1])
    return written


def _write_png(chart: LineChart, path: Path) -> None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
    for line, color in zip(chart.lines, chart.colors(), strict=True):
        values = [math.nan if value is None else value for value in line.values]
        axes.plot(chart.places, values, label=line.name, color=color, linestyle=line.style, marker=".")
        if line.low and all(v is not None for v in (*line.low, *line.high)):
            axes.fill_between(chart.places, line.low, line.high, alpha=0.15, color=color)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_xlabel(chart.xlabel)
    axes.set_ylabel(chart.ylabel)
    axes.set_xscale("log" if chart.x_log else "linear")
    axes.set_yscale("log" if chart.y_log else "linear")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
