"""The suite `train` of `weft bench gpu`, rehearsed on the CPU: losses and profiles, contenders that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from weft.testing.bench.benchmark import Contender
from weft.testing.devices import HostDevice
from weft.testing.gpu.case import Place, weft_contender
from weft.testing.gpu.peers import MAX_AUTOTUNE
from weft.testing.gpu.suites import SUITES
from weft.testing.gpu.train.models import Batch, train_case_named, train_cases
from weft.testing.gpu.train.race import TrainSetting, contender_names, train_row, wrong_losses
from weft.testing.gpu.train.session import Session, summed
from weft.tools.bench.gpu_report import cells, in_gib
from weft.tools.cli import app

pytest.importorskip("transformers")

HERE = Place(HostDevice(), 2048)


@pytest.mark.slow
def test_losses_of_a_rehearsal_are_those_of_eager(tmp_path: Path) -> None:
    given = ["--suite", "train", "--case", "llama_1b_train", "--rounds", "1", "--steps", "4", "--profile"]
    run = CliRunner().invoke(app, ["bench", "gpu", "--rehearse", *given, "--reports", str(tmp_path), "--json"])
    assert run.exit_code == 0, run.output
    (row,) = json.loads(run.stdout.strip().splitlines()[-1])["cases"]
    losses = row["losses"]
    assert losses["weft"] == pytest.approx(losses["eager"], rel=5e-3) and len(losses["weft"]) == 4
    assert losses["eager"] != losses["eager"][:1] * 4, "batches are the same, or nothing is learnt"
    assert row["profile"]["weft"]["top"][0]["us"] > 0 and row["backend_seconds"]["weft"] > 0
    assert row["ratio"] > 0 and row["unit"] == "ms"


def test_a_contender_that_fails_leaves_the_others_in_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.testing.gpu.train.race.contender_names", lambda case, setting: ["eager", "nobody"])
    row = train_row(train_case_named("gpt2_small_train"), TrainSetting("cpu", 2048, 1, 0.0, 2, False, False, 120.0))
    assert row["seconds"].keys() == {"eager"} and "KeyError" in row["failures"]["nobody"]
    assert not row["ok"] and "nobody failed" in cells(row)[-1]


@pytest.mark.slow
def test_every_family_takes_a_step_that_lowers_the_loss_of_its_batch() -> None:
    for case in train_cases():
        (batch, *_) = case.batches(HERE)
        session = Session(replace(case, make=_always(batch)), _plain(), HERE)
        losses = session.begin(3, profile=False)["losses"]
        assert min(losses[1:]) < losses[0], case.name


def _always(batch: Batch) -> Callable[[Place, int], Batch]:
    return lambda place, rows: batch


def _plain() -> Contender:
    return Contender("eager", lambda function: function)


def test_a_session_of_weft_has_losses_as_eager_and_says_where_the_time_went() -> None:
    case = train_case_named("llama_1b_train")
    mine = Session(case, weft_contender(), HERE).begin(3, profile=True)
    assert mine["losses"] == pytest.approx(Session(case, _plain(), HERE).begin(3, profile=False)["losses"], rel=5e-3)
    assert mine["profile"]["top"][0]["us"] > 0 and mine["uncompiled"] is None and mine["peak"] is None


def test_losses_that_are_not_those_of_eager_are_said() -> None:
    found = wrong_losses({"eager": [9.0, 4.0], "weft": [4.0, 9.0], "inductor": [1.0, 4.01]})
    assert list(found) == ["weft"] and "125.0%" in found["weft"]
    assert "weft" in wrong_losses({"eager": [1.0], "weft": [float("nan")]})
    assert wrong_losses({"weft": [1.0]}) == {}


def test_who_searches_takes_part_only_where_asked() -> None:
    cuda = TrainSetting("cuda", 1, 1, 0.0, 2, False, True, 1.0)
    gpt2, bert = train_case_named("gpt2_small_train"), train_case_named("bert_base_train")
    assert MAX_AUTOTUNE in contender_names(gpt2, cuda) and MAX_AUTOTUNE not in contender_names(bert, cuda)
    assert MAX_AUTOTUNE not in contender_names(gpt2, replace(cuda, search=False))
    others: set[Any] = {case.name for make in SUITES.values() for case in make()}
    assert not others & {case.name for case in train_cases()}


def test_kernels_are_summed_by_name_and_peaks_are_said() -> None:
    found = summed([("a", 0.0, 1.0), ("b", 1.0, 6.0), ("a", 4.0, 8.0)])  # the last was launched early
    assert found == {
        "us": 8.0,
        "kernels": 3,
        "top": [{"name": "b", "us": 5.0, "count": 1}, {"name": "a", "us": 3.0, "count": 2}],
    }
    assert in_gib({"weft": {"allocated": 1.0, "reserved": 1.5, "device": 2.0}, "eager": None}).endswith(
        "weft 1.00 (2.00)"
    )
    assert in_gib({"eager": None}) == "" and torch.is_grad_enabled()
