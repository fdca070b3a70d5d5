"""Paths that cannot be read or written are said before the work begins, as wrong command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import last_json

REHEARSAL = ("bench", "gpu", "--rehearse", "--suite", "memory", "--case", "softmax*")
RESULTS = "benchmarks/results/2026-11-15-13fbd5a-gpu-memory.json"


@pytest.mark.parametrize(
    "line",
    [
        (*REHEARSAL, "--reports", "{tmp}", "--into", "{tmp}/nothere.md"),
        (*REHEARSAL, "--reports", "{tmp}/file/folder"),
        ("bench", "table", RESULTS, "--into", "{tmp}/nothere.md"),
        ("bench", "cpu", "--suite", "small", "--reports", "{tmp}", "--into", "{tmp}/nothere.md"),
        ("conform", "opinfo", "abs", "--log", "{tmp}/nothere/x.jsonl"),
        ("conform", "models", "bert", "--reports", "{tmp}/file/folder"),
        ("explain", "{softmax}", "--target", "sm_90a", "--save", "{tmp}/file/folder"),
        ("explain", "{tmp}/k.py:mm", "--signature", "*fp32", "--target", "sm_91"),
    ],
    ids=lambda line: " ".join(line[:2] + line[-2:-1]),
)
def test_wrong_paths_and_targets_are_usage_errors(weft, tmp_path: Path, softmax: str, line: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    result = weft(*(part.format(tmp=tmp_path, softmax=softmax) for part in line), "--json")
    assert result.exit_code == 2, result.output
    found = last_json(result)
    assert found["error"] == "UsageError" and found["hint"]


def test_a_text_without_a_place_is_said_before_measuring(weft, tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text("no marks")
    result = weft(*REHEARSAL, "--reports", str(tmp_path), "--into", str(tmp_path / "text.md"), "--json")
    assert result.exit_code == 2
    assert "has no place for the suite gpu-memory" in last_json(result)["message"]
