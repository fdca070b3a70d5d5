"""Tables of runs on several processors, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.tools.bench.cpu_tables import read_cpu_results, side_by_side

MACHINE = "{} ({}, 512-bit vectors), 16 cores, {} threads; torch 2.13.0, Python 3.12.3, Weft 0.1.0, 2026-11-16"


def row(name: str, ratio: float | None, weft: float = 0.001) -> dict[str, object]:
    low, high = (None, None) if ratio is None else (ratio * 0.9, ratio * 1.01)
    about = {"ratio": ratio, "ratio_low": low, "ratio_high": high, "peer": ratio and "eager"}
    return {"suite": "models", "name": name, "eager": weft * (ratio or 1), "weft": weft, **about}


def file(folder: Path, name: str, architecture: str, threads: int, *rows: dict[str, object]) -> Path:
    path = folder / name
    about = MACHINE.format("cpu", architecture, threads)
    path.write_text(json.dumps({"machine": about, "cases": [*rows, {"suite": "compile", "name": "no times"}]}))
    return path


def test_each_processor_and_number_of_threads_has_columns(tmp_path: Path) -> None:
    files = [
        file(tmp_path, "a", "aarch64", 2, row("bert", 1.5), row("vit", 0.9)),
        file(tmp_path, "b", "x86_64", 8, row("bert", 9.0)),
        file(tmp_path, "c", "x86_64", 8, row("bert", 2.0, 0.5), row("gpt2", None)),
    ]
    found = [read_cpu_results(path) for path in files]
    tables = side_by_side([each for each in found if each is not None])
    assert list(tables) == ["models"]
    head, _, bert, vit, gpt2, _, words, *_ = tables["models"].splitlines()
    assert [cell.strip() for cell in head.split("|")][2:4] == [
        "AArch64, 2 threads: best peer, ms",
        "AArch64, 2 threads: Weft, ms",
    ]
    assert "x86-64, 8 threads: × best peer (95%)" in head
    assert bert == "| bert | 1.5 (eager) | 1 | 1.50 (1.35–1.52) | 1000 (eager) | 500 | 2.00 (1.80–2.02) |"
    assert vit.endswith("| – | – | – |") and gpt2 == "| gpt2 | – | – | – | – | 1 | – |"
    assert "AArch64, 2 threads: geometric mean 1.16, worst 0.90 (vit), 1 surely below 0.95" in words
    assert "x86-64, 8 threads: geometric mean 2.00" in words


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "gpu").write_text(json.dumps({"device": "a GPU", "cases": []}))
    assert read_cpu_results(tmp_path / "gpu") is None
    with pytest.raises(WeftError, match="cannot be read"):
        read_cpu_results(tmp_path / "none")


def test_the_command_takes_them(weft, tmp_path: Path) -> None:
    text = tmp_path / "text.md"
    text.write_text("<!-- bench models -->\nold\n<!-- end -->\n")
    path = file(tmp_path, "a", "x86_64", 8, row("bert", 1.5))
    assert weft("bench", "table", str(path), "--into", str(text)).exit_code == 0
    assert "| bert | 1.5 (eager) | 1 |" in text.read_text() and "old" not in text.read_text()
