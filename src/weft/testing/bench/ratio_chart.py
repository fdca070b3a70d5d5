"""A chart of ratios by suite: a dot for each case on a logarithmic axis, a bar at the geometric mean, a line at 1.

It is SVG with colors for light and for dark pages: the picture has its own ground, so it can be read on either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from weft.testing.bench.benchmark import geometric_mean

_LEFT, _WIDTH, _RIGHT, _TOP, _ROW, _HEAD = 190, 460, 120, 68, 22, 26

_STYLE = """
.ground { fill: #ffffff } .text { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 }
.one { stroke: #59636e } .above { fill: #0f8b8d } .below { fill: #c2541b } .mean { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .text { fill: #e6edf3 } .dim { fill: #9198a1 } .grid { stroke: #30363d }
.one { stroke: #9198a1 } .above { fill: #3fb6b8 } .below { fill: #f0883e } .mean { fill: #e6edf3 }
}
"""


@dataclass(frozen=True, slots=True)
class RatioChart:
    """Ratios of cases by machine and suite; above 1 is faster."""

    title: str
    machines: Mapping[str, Mapping[str, Sequence[float]]]
    note: str = ""


def ratio_svg(chart: RatioChart) -> str:
    """The chart as an SVG picture."""
    ratios = [ratio for suites in chart.machines.values() for found in suites.values() for ratio in found]
    low = math.floor(math.log2(min([*ratios, 1.0])))
    high = math.ceil(math.log2(max([*ratios, 2.0])))

    def x(ratio: float) -> float:
        return _LEFT + (math.log2(ratio) - low) / (high - low) * _WIDTH

    rows, y = list[str](), _TOP
    for machine, suites in chart.machines.items():
        rows.append(f'<text x="14" y="{y + 17}" class="text" font-weight="600">{escape(machine)}</text>')
        y += _HEAD
        for suite, found in suites.items():
            rows += _row(suite, found, y + _ROW // 2, x)
            y += _ROW
    width, height = _LEFT + _WIDTH + _RIGHT, y + 44
    axis: list[str] = []
    for power in range(low, high + 1):
        at, kind = x(2.0**power), "one" if power == 0 else "grid"
        axis.append(f'<line x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{y}" class="{kind}"/>')
        axis.append(f'<text x="{at:.1f}" y="{_TOP - 10}" text-anchor="middle" class="dim">{2.0**power:g}×</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>{escape(chart.title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" class="ground"/>\n'
        f'<text x="14" y="24" class="text" font-weight="600" font-size="15">{escape(chart.title)}</text>\n'
        f'<text x="{width - 14}" y="{_TOP - 10}" text-anchor="end" class="dim">mean (cases)</text>\n'
        + "\n".join([*axis, *rows])
        + f'\n<text x="14" y="{height - 14}" class="dim" font-size="11">{escape(chart.note)}</text>\n</svg>\n'
    )


def _row(suite: str, ratios: Sequence[float], y: int, x: Callable[[float], float]) -> list[str]:
    mean = geometric_mean(list(ratios))
    dots = [
        f'<circle cx="{x(ratio):.1f}" cy="{y}" r="4" class="{"above" if ratio >= 1 else "below"}" fill-opacity="0.5"/>'
        for ratio in ratios
    ]
    return [
        f'<text x="{_LEFT - 14}" y="{y + 4}" text-anchor="end" class="text">{escape(suite)}</text>',
        *dots,
        f'<rect x="{x(mean) - 1.5:.1f}" y="{y - 9}" width="3" height="18" class="mean"/>',
        f'<text x="{_LEFT + _WIDTH + _RIGHT - 14}" y="{y + 4}" text-anchor="end" class="text">'
        f"{mean:.2f}× ({len(ratios)})</text>",
    ]
