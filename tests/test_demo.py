"""The demo runs from a fresh cache, offline, and leaves its report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo_minilm.py"


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
