"""Calibration with a user's own runs: factors that are found again, what is told, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.planner.calibration import Run, calibrate, read_runs, scaled
from weft.planner.errors import CalibrationError
from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping
from weft.planner.model import find_model
from weft.planner.search import Settings, open_costs, predictor
from weft.planner.traffic import traffic_of
from weft.tools.cli import app

H200 = find_gpu("h200")
PREDICT = predictor(find_model("Llama-3.1-8B"), H200, open_costs(H200, None, "weft"), Settings())


def measured(few: float, many: float) -> list[Run]:
    runs: list[Run] = []
    for isl, osl, clients in ((128, 512, 4), (128, 512, 64), (2048, 128, 8), (2048, 128, 64), (8000, 200, 16)):
        blank = Run(Mapping(), isl, osl, clients, 1.0)
        tpot, ttft = PREDICT(blank, few, many)
        runs.append(Run(Mapping(), isl, osl, clients, tpot, ttft))
    return runs


def test_factors_are_found_again() -> None:
    found = calibrate(measured(1.2, 1.5), PREDICT, "runs.csv")
    assert found.few == pytest.approx(1.2, rel=0.02)
    assert found.many == pytest.approx(1.5, rel=0.02)
    assert found.after < 0.03 < found.before
    assert "5 runs (runs.csv)" in str(found)


def test_one_run_moves_what_it_says_something_of() -> None:
    found = calibrate(measured(1.3, 1.0)[:1], PREDICT, "one")
    assert 1.15 < found.few < 1.35
    assert "not left out" in str(found)


def test_factors_of_one_change_nothing() -> None:
    costs = open_costs(H200, None, "weft")
    from weft.planner.mapping import rank_program
    from weft.planner.step_costs import step_costs

    plain = step_costs(rank_program(find_model("Mixtral-8x7B"), Mapping(2, 1, 1, 2, 1)), costs, "bfloat16")
    same, slow = scaled(plain, 1.0, 1.0), scaled(plain, 2.0, 2.0)
    assert float(same.decode_step(32, 1000)) == float(plain.decode_step(32, 1000))
    assert float(slow.decode_step(32, 1000)) == pytest.approx(2 * float(plain.decode_step(32, 1000)))
    assert float(slow.prompt(3000)) == pytest.approx(2 * float(plain.prompt(3000)))


def test_the_command_calibrates_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    lines = ["isl,osl,concurrency,tpot_ms,ttft_ms,tp"]
    lines += [
        f"{e.isl:.0f},{e.osl:.0f},{e.concurrency:.0f},{e.tpot * 1e3},{e.ttft * 1e3},1" for e in measured(1.4, 1.1)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    given = ["plan", "Llama-3.1-8B", "--traffic", "isl=500,osl=200,rate=20", "--max-gpus", "2", "--json"]
    plain = json.loads(CliRunner().invoke(app, given).stdout)
    seen = CliRunner().invoke(app, [*given, "--calibrate", str(path)])
    told = json.loads(seen.stdout)
    assert told["calibration"]["few"] == pytest.approx(1.4, rel=0.03)
    assert plain["calibration"] is None
    assert told["chosen"]["tokens_s_gpu"] < plain["chosen"]["tokens_s_gpu"]
    words = CliRunner().invoke(app, [*given[:-1], "--calibrate", str(path)])
    assert "calibrated with 5 runs" in " ".join(words.output.split())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("isl,osl,concurrency\n1,2,3", "tpot_ms"), ("isl,osl,concurrency,tpot_ms\n1,2,3,fast", "tpot_ms"),
        ("isl,osl,concurrency,tpot_ms\n1,2,-3,9", "concurrency"), ("", "no runs"),
        ("isl,osl,concurrency,tpot_ms,tp\n9,9,9,9,0", "tp"),
    ],
)  # fmt: skip
def test_runs_that_are_none_name_their_field(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=named):
        read_runs(path)


def test_files_of_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("isl,osl,concurrency,tpot_ms\n9,9,9,9", encoding="utf-8-sig")  # with a byte order mark
    assert read_runs(path)[0].isl == 9
    path.write_text("seconds,isl,osl\n0,9,9\n1,9,9", encoding="utf-8-sig")
    assert traffic_of(str(path)).isl == 9


def test_a_run_of_another_model_is_refused() -> None:
    with pytest.raises(CalibrationError, match="does not divide"):
        calibrate([Run(Mapping(7), 100, 100, 1, 0.01)], PREDICT, "x")
