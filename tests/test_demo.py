"""The demo runs from a fresh cache, offline, and leaves its report."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from weft.testing.bench.charts import Bar, Chart

DEMO = Path(__file__).parents[1] / "examples" / "demo_minilm.py"


def test_its_report_has_tables_of_a_page(tmp_path: Path) -> None:
    spec = spec_from_file_location("demo_minilm", DEMO)
    assert spec is not None and spec.loader is not None
    demo: Any = module_from_spec(spec)
    spec.loader.exec_module(demo)
    made = demo.table("Latency <of all>", "batch", "weft, ms")
    made.add_row("1 & 2", "3.4 ±1%")
    chart = Chart("shares", {"batch 1": [Bar("weft", 0.9, "3.4 ms")]}, "shorter is better", line=1.0)
    page = demo.write_report(tmp_path, "head", "verdict", [made], chart).read_text(encoding="utf-8")
    assert "<h2>Latency &lt;of all&gt;</h2>" in page and "<td>1 &amp; 2</td><td>3.4 ±1%</td>" in page
    assert "<pre" not in page and "┃" not in page and "overflow-x: auto" in page
    picture = page[page.index("<svg") : page.index("</svg>")]
    assert picture.index("<line") < picture.index("3.4 ms"), "labels lie on the line, not under it"


@pytest.mark.slow
def test_the_demo_runs_where_there_is_no_cpp_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, DEMO, "--seconds", "0.1", "--reports", tmp_path / "reports"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Similarities equal eager's" in done.stdout
    assert "Inductor is left out" in done.stdout
    assert "0 left to torch" in done.stdout
    page = (tmp_path / "reports" / "demo.html").read_text(encoding="utf-8")
    assert "<svg" in page and "batch 32" in page
    assert (tmp_path / "reports" / "demo.svg").is_file()
