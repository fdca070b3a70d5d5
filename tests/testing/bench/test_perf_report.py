"""`perf_report`: measured values become tables, CSV files and line charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from weft.testing.bench.charts import has_matplotlib
from weft.testing.bench.line_charts import Line, LineChart, line_svg
from weft.testing.bench.perf_report import Benchmark, PerfReportError, perf_report


def _benchmark(**changes: object) -> Benchmark:
    given = {
        "x_names": ["n"],
        "x_vals": [16, 64],
        "line_arg": "provider",
        "line_vals": ["a", "b"],
        "line_names": ["A", "B"],
        "plot_name": "speed",
        "args": {"k": 2},
        "ylabel": "GB/s",
        **changes,
    }
    return Benchmark(**given)  # pyright: ignore[reportArgumentType]


@perf_report(_benchmark(x_log=True))
def measured(n: int, provider: str, k: int) -> tuple[float, float, float]:
    value = float(n * k) * (2 if provider == "a" else 1)
    return value, value * 0.9, value * 1.1


def test_tables_and_charts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured.run(print_data=True, save_path=tmp_path)
    assert "A (GB/s)" in capsys.readouterr().out
    assert (tmp_path / "speed.csv").read_text().splitlines()[1] == "16,64.000000,32.000000"
    root = ElementTree.fromstring((tmp_path / "speed.svg").read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert "speed.svg" in (tmp_path / "results.html").read_text()
    if has_matplotlib():
        assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_several_names_take_one_value_or_one_each() -> None:
    both = _benchmark(x_names=["m", "n"])
    assert both.point(8) == {"m": 8, "n": 8}
    assert both.point((8, 9)) == {"m": 8, "n": 9}
    with pytest.raises(PerfReportError, match="expected 2 values"):
        both.point((8, 9, 10))


def test_a_line_may_have_gaps() -> None:
    text = line_svg(LineChart("t", [1.0, 2.0, 3.0], [Line("a", [1.0, None, 3.0])]))
    points = ElementTree.fromstring(text).findall("{http://www.w3.org/2000/svg}circle")
    assert len(points) == 2
