"""Bar charts for reports: SVG written by hand, always; PNG where matplotlib is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLORS = {"eager": "#9aa5b1", "inductor": "#e08e45", "weft": "#0f8b8d"}
_OTHER = "#7b6fb5"
_BAR, _GAP, _LEFT, _WIDTH, _LABELS = 16, 12, 200, 480, 130


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: whose it is, how long, and what is written beside it."""

    name: str
    length: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Groups of horizontal bars under a title; `line` draws a vertical line at that length."""

    title: str
    groups: Mapping[str, Sequence[Bar]]
    note: str = ""
    line: float | None = None

    @property
    def longest(self) -> float:
        lengths = [bar.length for bars in self.groups.values() for bar in bars]
        return max([*lengths, self.line or 0.0], default=0.0) or 1.0


def svg(chart: Chart) -> str:
    """The chart as an SVG picture."""
    scale, y = _WIDTH / chart.longest, 58
    parts: list[str] = []
    for label, bars in chart.groups.items():
        middle = y + len(bars) * _BAR / 2 + 4
        parts.append(f'<text x="{_LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(label)}</text>')
        for bar in bars:
            width = max(bar.length * scale, 1.0)
            color = COLORS.get(bar.name, _OTHER)
            parts.append(f'<rect x="{_LEFT}" y="{y + 1}" width="{width:.1f}" height="{_BAR - 2}" fill="{color}"/>')
            text = f'<text x="{_LEFT + width + 6:.1f}" y="{y + 12}" class="value">{escape(bar.text)}</text>'
            parts.append(text)
            y += _BAR
        y += _GAP
    if chart.line is not None:
        x = _LEFT + chart.line * scale
        # Behind the bars and their labels, which have an edge of white: it must not strike them through.
        parts.insert(
            0, f'<line x1="{x:.1f}" y1="54" x2="{x:.1f}" y2="{y - _GAP + 4}" stroke="#444" stroke-dasharray="3 3"/>'
        )
    width, height = _LEFT + _WIDTH + _LABELS, y + 18
    names = dict.fromkeys(bar.name for bars in chart.groups.values() for bar in bars)
    legend = "".join(
        f'<rect x="{_LEFT + 110 * n}" y="34" width="12" height="12" fill="{COLORS.get(name, _OTHER)}"/>'
        f'<text x="{_LEFT + 110 * n + 18}" y="44">{escape(name)}</text>'
        for n, name in enumerate(names)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>{escape(chart.title)}</title>\n"
        "<style>.value { font-size: 11px; fill: #444; paint-order: stroke; stroke: #fff; stroke-width: 4px }</style>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="14" y="22" font-weight="600" font-size="15">{escape(chart.title)}</text>\n{legend}\n'
        + "\n".join(parts)
        + f'\n<text x="14" y="{height - 8}" class="value">{escape(chart.note)}</text>\n</svg>\n'
    )


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def write_chart(chart: Chart, path: Path) -> list[Path]:
    """Write `path`.svg and, where matplotlib is installed, `path`.png; gives the files written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(".svg")]
    written[0].write_text(svg(chart), encoding="utf-8")
    if has_matplotlib():
        written.append(path.with_suffix(".png"))
        _write_png(chart, written[-1])
    return written


def _write_png(chart: Chart, path: Path) -> None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    rows = sum(len(bars) + 1 for bars in chart.groups.values())
    figure, axes = pyplot.subplots(figsize=(9, max(2.0, 0.22 * rows + 0.9)), dpi=120)
    y, ticks, shown = 0.0, dict[str, float](), set[str]()
    for label, bars in chart.groups.items():
        ticks[label] = y + (len(bars) - 1) / 2
        for bar in bars:
            legend = None if bar.name in shown else bar.name
            shown.add(bar.name)
            axes.barh(y, bar.length, 0.9, color=COLORS.get(bar.name, _OTHER), label=legend)
            where: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            edge = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.annotate(bar.text, (bar.length, y), **where, fontsize=7, bbox=edge)
            y += 1
        y += 0.8
    if chart.line is not None:
        axes.axvline(chart.line, color="#444444", linestyle="--", linewidth=0.8, zorder=0.5)
    axes.set_yticks(list(ticks.values()), list(ticks), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, chart.longest * 1.2)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_xlabel(chart.note, fontsize=7)
    axes.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
