"""Checks of whole programs in child processes, training that follows eager, and OpInfo in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from weft.testing.conformance.conformance import run_opinfo
from weft.testing.conformance.model_check import compile_with
from weft.testing.conformance.training import TrainingReport, check_training
from weft.testing.gpu import sanitize
from weft.testing.gpu.corpus import op_function
from weft.testing.gpu.op_checks import cases
from weft.testing.models import SMALL
from weft.tools.cli import app


def last_json(output: str) -> Any:
    return json.loads(output.strip().splitlines()[-1])


def test_training_follows_eager() -> None:
    report = check_training(SMALL["gpt2"], compile_with("weft", cache=False), steps=4)
    assert report.ok, str(report)


def test_training_that_leaves_eager_or_learns_nothing_is_wrong() -> None:
    assert TrainingReport("m", (3.0, 2.0), (3.0, 2.0)).ok
    assert not TrainingReport("m", (3.0, 2.1), (3.0, 2.0)).ok
    assert "LEAVES" in str(TrainingReport("m", (3.0, 3.0), (3.0, 3.0)))


@pytest.mark.slow
def test_models_are_checked_in_children_and_kept(tmp_path: Path) -> None:
    common = ["conform", "models", "bert", "--reports", str(tmp_path), "--jobs", "1", "--json"]
    first = CliRunner().invoke(app, common)
    assert first.exit_code == 0, first.output
    found = last_json(first.stdout)["checks"]
    assert found["model bert float32"]["ok"]
    assert last_json(CliRunner().invoke(app, [*common, "--resume"]).stdout)["checks"] == found, "it was run again"
    late = CliRunner().invoke(app, [*common, "--budget", "0"])
    assert late.exit_code == 1 and last_json(late.stdout)["not_begun"] == ["model bert float32"]
    unknown = CliRunner().invoke(app, ["conform", "models", "nothing", "--json"])
    assert unknown.exit_code == 2 and "llama" in last_json(unknown.stdout)["hint"]


def test_opinfo_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log, given = tmp_path / "log", {"ops": ["add", "neg"], "samples": 1, "gradients": False, "jobs": 0}
    whole = run_opinfo("identity", log=log, **given)
    lines = log.read_text().splitlines()
    assert len(lines) == len(whole.results) == 2
    log.write_text(lines[0] + "\n" + lines[1][:20])
    late = run_opinfo("identity", log=log, resume=True, budget=-1.0, **given)
    assert not late.ok and len(late.not_begun) == 1 and len(late.results) == 1
    rest = run_opinfo("identity", log=log, resume=True, **given)
    assert rest.ok and sorted(result.op for result in rest.results) == ["add", "neg"]
    run = CliRunner().invoke(app, ["conform", "opinfo", "neg", "--resume", "--json"])
    assert run.exit_code == 2 and "--log" in last_json(run.stdout)["hint"]


def test_an_op_is_a_program_of_its_own() -> None:
    chosen = cases()
    assert len(chosen) > 300
    function = op_function(chosen[0])
    function.verify()
    assert len(list(function.block.ops)) == 2


def test_what_the_sanitizer_reports_is_read(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    said = {"0/16": ("12 cases, 160 kernels, 0 wrong", 0)}

    def fake(tool: str, part: str, python: Any, tests: Any) -> list[str]:
        text, code = said.get(part, ("1 cases, 1 kernels, 0 wrong", 0))
        return ["sh", "-c", f"echo '{text}'; exit {code}"]

    monkeypatch.setattr(sanitize, "command", fake)
    given = ["--tool", "racecheck", "--reports", str(tmp_path), "--jobs", "2"]
    assert sanitize.main(given) == 0
    assert "175 kernels, no report" in capsys.readouterr().out
    said["3/16"] = ("Invalid __global__ write", 99)
    assert sanitize.main(given) == 0, "what was clean is not run again"
    assert sanitize.main([*given[:2], "--reports", str(tmp_path / "new")]) == 1
    assert "Invalid __global__ write" in capsys.readouterr().out


def test_a_sanitizer_that_is_not_there_is_no_success() -> None:
    watched = sanitize.watch(["no-such-program"], "0/1")
    assert not watched.ok and "cannot be run" in watched.said
    assert "racecheck" in sanitize.command("racecheck", "0/1", ["python"])


def test_the_sanitizer_watches_tests_too(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def fake(tool: str, part: str, python: Any, tests: Any) -> list[str]:
        return ["sh", "-c", f"echo '3 passed, 4 deselected of {tests[0]}'; exit {int(part == '7/32')}"]

    line = sanitize.command("memcheck", "1/16", ["python"], ["tests/gpu/some.py"])
    assert line[line.index("--shard") :] == ["--shard", "1/16", "tests/gpu/some.py"]
    monkeypatch.setattr(sanitize, "command", fake)
    given = ["--reports", str(tmp_path), "tests/gpu/some.py"]
    assert sanitize.main([*given, "--shard", "0/2"]) == 0
    assert "48 tests, no report" in capsys.readouterr().out
    assert sanitize.main([*given, "--shard", "1/2"]) == 1
    assert "7/32: REPORTS" in capsys.readouterr().out


def test_the_sanitizer_does_not_take_one_file_for_another(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    said = {"tests/gpu/a.py": "3 passed", "tests/gpu/b.py": "2 passed", "tests/gpu/c.py": "0 passed"}
    monkeypatch.setattr(sanitize, "command", lambda tool, part, python, tests: ["echo", said[tests[0]]])
    for file, code, ran in (("a", 0, 48), ("b", 0, 32), ("c", 1, 0)):
        assert sanitize.main(["--reports", str(tmp_path), f"tests/gpu/{file}.py"]) == code
        assert f"{ran} tests" in capsys.readouterr().out


def test_random_operators_are_known_by_their_generator() -> None:
    report = run_opinfo("identity", ops=["bernoulli"], samples=1, jobs=0, gradients=False)
    assert report.ok and torch.random.get_rng_state() is not None
