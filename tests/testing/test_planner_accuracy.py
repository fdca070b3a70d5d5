"""The planner against measured runs: what is read of a folder, what is left out, and what a choice loses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from weft import planner
from weft.planner.mapping import Mapping
from weft.testing.planner_accuracy import Errors, Pricer, services
from weft.testing.planner_throughput import throughput

SERVING = {
    "system": "h200_sxm", "model": "meta-llama/Llama-3.1-8B", "backend": "weft", "precision": "", "mode": "agg",
    "isl": "1000", "osl": "100", "concurrency": "8", "tp_size": "1", "pp_size": "1", "attention_dp_size": "1",
    "moe_tp_size": "", "moe_ep_size": "", "ttft_ms": "50", "tpot_ms": "6", "saturated": "0", "campaign": "",
}  # fmt: skip
PUBLISHED = {
    "model": "Llama-3.1-8B", "hw": "H200-SXM", "precision": "fp8", "mapping": "TP1", "isl": "1000", "osl": "100",
    "metric": "total_output_throughput", "value": "9000", "engine": "TensorRT-LLM 1.0", "load": "max",
}  # fmt: skip


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernel_tables").symlink_to(Path(planner.__file__).parent / "data" / "kernel_tables")
    rows = [
        {**SERVING, "tp_size": tp, "concurrency": clients, "tpot_ms": tpot}
        for tp, clients, tpot in (("1", "8", "6"), ("1", "64", "12"), ("2", "8", "4"), ("2", "64", "9"))
    ]
    write(
        tmp_path / "serving_measurements.csv", [*rows, {**SERVING, "model": "no/such"}, {**SERVING, "mode": "disagg"}]
    )
    write(tmp_path / "published_throughput.csv", [PUBLISHED, {**PUBLISHED, "load": "closed loop"}])
    return tmp_path


def test_every_row_is_priced_or_told(folder: Path) -> None:
    tpot, ttft, mapped, ranked = services(folder)
    assert [row[1] for row in tpot.rows()] == [4]
    assert sum(tpot.left_out.values()) == 2
    assert [row[1] for row in ttft.rows()] == [4]
    assert len(mapped.found) == len(ranked.found) == 1
    for best, chosen in zip(*(next(iter(each.found.values())) for each in (mapped, ranked)), strict=True):
        assert 0 <= best <= chosen <= 1


def test_a_run_at_the_highest_load_is_simulated_as_it_was_made(folder: Path) -> None:
    found = throughput(folder)
    assert [row[1] for row in found.rows()] == [1]
    assert abs(found.rows()[0][2]) < 3


def test_lengths_of_a_campaign_are_those_that_it_draws(folder: Path) -> None:
    pricer = Pricer(folder)
    assert pricer.case(SERVING).isl == 1000
    case = pricer.case({**SERVING, "campaign": "inferencex x"})
    assert (case.isl, case.osl, case.parallel) == (900, 90, Mapping())


def test_the_share_of_errors_within_a_part() -> None:
    errors = Errors("x", {"a": [0.01, -0.02], "b": [0.3, 0.05]})
    assert errors.within(0.05) == 0.75
    assert Errors("none").within(0.05) == 0.0
