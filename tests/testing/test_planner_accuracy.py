"""The planner against measured runs: what is read of a folder, what is left out, and what a choice loses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from weft import planner
from weft.planner.errors import TableError
from weft.planner.mapping import Mapping
from weft.testing.planner_accuracy import Errors, Pricer, services
from weft.testing.planner_rows import checkpoint
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
    found, moved = throughput(folder)
    assert [row[1] for row in found.rows()] == [1]
    assert abs(found.rows()[0][2]) < 3
    assert found.left_out == {"no output throughput at the highest load": 1} and not moved.found


def test_published_rows_of_any_gpu_engine_and_mapping_are_priced_or_told(folder: Path) -> None:
    changes = (
        {"hw": "B200", "precision": "nvfp4"}, {"hw": "MI300X"}, {"engine": "LMDeploy 0.7"}, {"mapping": "TP8 EP8"},
        {"mapping": "TP3"}, {"mapping": ""}, {"precision": "w4a8"}, {"isl": ""}, {"value": ""}, {"model": "no/such"},
    )  # fmt: skip
    write(folder / "published_throughput.csv", [{**PUBLISHED, **change} for change in changes])
    found, moved = throughput(folder)
    assert list(moved.found) == ["B200 Llama-3.1-8B TensorRT-LLM 1.0"] and not found.found
    assert found.left_out == {
        "no GPU MI300X in the catalogue": 1, "no engine LMDeploy 0.7": 1, "mapping 'TP8 EP8'": 1,
        "TP3 does not divide Llama-3.1-8B": 1, "no mapping": 1, "no precision w4a8": 1, "no isl": 1, "no value": 1,
        "no configuration of no/such": 1,
    }  # fmt: skip


def test_rows_of_any_system_engine_model_and_format_are_priced_or_told(folder: Path) -> None:
    experts = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "precision": "fp8"}
    changes = (
        {"system": "b200_sxm"}, {"system": "mi300x"}, {"backend": "lmdeploy"}, {"precision": "w4a8"}, {"tp_size": "3"},
        {"concurrency": ""}, {"tpot_ms": ""}, {"mode": ""}, {**experts, "tp_size": "2"},
        {**experts, "tp_size": "2", "moe_tp_size": "2", "moe_ep_size": "2"}, {"precision": "int4"},
    )  # fmt: skip
    write(folder / "serving_measurements.csv", [{**SERVING, **change} for change in changes])
    tpot, *_ = services(folder)
    assert {name: len(found) for name, found in tpot.found.items()} == {
        "dense: b200_sxm Llama-3.1-8B weft (tables of h200_sxm)": 1,
        "dense: h200_sxm Llama-3.1-8B lmdeploy (tables of weft)": 1,
        "dense: h200_sxm Llama-3.1-8B weft": 1,
        "experts: h200_sxm Qwen3-30B-A3B-Instruct-2507-FP8 weft": 1,
    }
    assert tpot.left_out == {
        "no GPU mi300x in the catalogue": 1, "no precision w4a8": 1, "TP3 does not divide meta-llama/Llama-3.1-8B": 1,
        "no concurrency": 1, "no tpot_ms": 1, "mode ''": 1, "experts over 4 ranks of 2": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"), [("tpot_ms", "fast"), ("tpot_ms", "-3"), ("isl", "nan"), ("tp_size", "1.5")]
)
def test_what_is_no_figure_is_named(folder: Path, column: str, value: str) -> None:
    write(folder / "serving_measurements.csv", [{**SERVING, column: value}])
    with pytest.raises(TableError, match=column):
        list(services(folder))


def test_a_column_that_is_missing_is_named(folder: Path) -> None:
    write(folder / "serving_measurements.csv", [{name: text for name, text in SERVING.items() if name != "tp_size"}])
    with pytest.raises(TableError, match="tp_size"):
        list(services(folder))


def test_a_row_says_in_which_format_its_model_is(folder: Path) -> None:
    assert checkpoint("DeepSeek-R1", "fp8")[0].weights == "fp8_block"
    assert checkpoint("DeepSeek-R1", "nvfp4")[0].expert_weights == "nvfp4"
    assert checkpoint("DeepSeek-R1", "bf16")[0].weights == "bf16"
    assert checkpoint("Llama-3.1-8B", "fp8", "fp8_block")[0].weights == "fp8_block"
    assert checkpoint("Llama-3.1-8B", "int4")[0].weights == "int4"
    assert checkpoint("gpt-oss-120b", "mxfp4")[0].weights == "bf16"
    assert checkpoint("Kimi-K2.5", "")[0].expert_weights == "int4"


def test_lengths_of_a_campaign_are_those_that_it_draws(folder: Path) -> None:
    pricer = Pricer(folder)
    assert pricer.case(SERVING).isl == 1000
    case = pricer.case({**SERVING, "campaign": "inferencex x"})
    assert (case.isl, case.osl, case.parallel) == (900, 90, Mapping())


def test_the_share_of_errors_within_a_part() -> None:
    errors = Errors("x", {"a": [0.01, -0.02], "b": [0.3, 0.05]})
    assert errors.within(0.05) == 0.75
    assert Errors("none").within(0.05) == 0.0
