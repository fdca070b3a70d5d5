"""What is distributed: the source archive holds what the README names, and says where the project lives."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
INCLUDED: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
FILES = f"{PYPROJECT['project']['urls']['Repository']}/blob/main/"

NAMED = sorted(
    {
        *(link.removeprefix(FILES) for link in re.findall(r"\]\(([^)#\s]+)", README) if link.startswith(FILES)),
        *("Makefile", "requirements/lock.txt", "examples/demo_minilm.py", "docs/speed.svg", "benchmarks/log.md"),
        *("benchmarks/results/current.txt", "tests/docs/pages.py", "src/weft/__init__.py", "pyproject.toml"),
    }
)


@pytest.mark.parametrize("name", NAMED)
def test_what_the_readme_names_is_included(name: str) -> None:
    assert (ROOT / name).is_file()
    assert name == "pyproject.toml" or any(f"/{name}".startswith(each) for each in INCLUDED)


@pytest.mark.slow
def test_the_source_archive_holds_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
        about = tar.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert about is not None
        text = about.read().decode()
    assert set(NAMED) <= held
    for name, address in PYPROJECT["project"]["urls"].items():
        assert f"Project-URL: {name}, {address}" in text
    assert "Description-Content-Type: text/markdown" in text
    assert not [name for name in held if "__pycache__" in name or name.startswith((".venv", "offline", "reports"))]
