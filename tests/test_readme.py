"""The README is true: its Python blocks run in order, its links lead somewhere, its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.tools.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_blocks_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    script = tmp_path / "readme.py"
    # What the text says of an explanation: that it prints as a report, and has the programs.
    asked = "print(explanation)\nprint(explanation.programs())\n"
    script.write_text("\n".join([*blocks, asked]), encoding="utf-8")
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Kernels" in done.stdout and "tile.kernel" in done.stdout


def test_what_is_printed_is_what_is_shown(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tests/docs/pages.py", ROOT / "README.md"]
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert README.count("<!-- output of: previous block -->") >= 2
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_means_are_those_of_the_tables() -> None:
    tables = (ROOT / "docs/performance.md").read_text(encoding="utf-8")

    def mean(heading: str, machine: str = "") -> str:
        section = tables.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
        found = re.search(rf"{machine}[^;\n]*?geometric mean ([\d.]+)", section)
        assert found is not None, heading
        return found[1]

    said = README.partition("In the geometric mean of a suite")[2].partition("[The tables]")[0]
    assert re.findall(r"\d+\.\d+", said) == [
        *map(mean, ("Memory-bound kernels", "GEMM", "Attention", "Models")),
        *(mean("Models on a CPU", machine) for machine in ("AArch64", "x86-64")),
    ]


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", PROSE))
def test_links_lead_to_files(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).is_file()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`weft ([a-z]+)", README))))
def test_commands_exist(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
