"""Files of results as tables and as a picture: one orientation of ratios, and every figure from the file it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from weft.tools.bench.gpu_report import GpuResults, markdown
from weft.tools.bench.result_files import read_files

from .conftest import last_json

MACHINE = "cpu (aarch64, 128-bit vectors), 2 cores, 2 threads; torch 2.13.0, Python 3.12.3, Weft 0.1.0, 2026-11-16"


def processor_file(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"machine": MACHINE, "cases": rows}))
    return path


def timed(suite: str, name: str, ratio: float, peer: str = "eager") -> dict[str, Any]:
    about = {"ratio": ratio, "ratio_low": ratio, "ratio_high": ratio, "peer": peer, peer: ratio, "weft": 1.0}
    return {"suite": suite, "name": name, **about}


def gpu_row(suite: str, name: str, ratio: float, **other: Any) -> dict[str, Any]:
    row = {"suite": suite, "name": name, "weft": 1.0, "peer": 1.0, "peer_name": "cublas", "unit": "ms", "ok": True}
    row |= {"ratio": ratio, "ratio_low": ratio, "ratio_high": ratio, "share_of_limit": 0.5, "backend_seconds": {}}
    row |= {"failures": {}, "wrong": {}, "left_out": {}, "claims": [], "fallbacks": [], "uncompiled": None}
    return {**row, **other}


def gpu_file(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"gpu": "a GPU", "commit": "abc", "date": "d", "cases": rows}))
    return path


def test_compile_times_and_memory_are_ratios_above_one_where_weft_is_better(weft, tmp_path: Path) -> None:
    compiled = {"backend_seconds": {"inductor": 8.0, "weft": 2.0, "weft_warm": 0.5}, "first_call": {"weft": 3.0}}
    taken = {"peak_growth": {"eager": 4e6, "weft": 1e6}, "packed": 2e6, "weights": 3e6, "memory_ratio": 0.25}
    rows = ({"suite": "compile", "name": "a", **compiled}, {"suite": "memory", "name": "b", **taken})
    run = weft("bench", "table", str(processor_file(tmp_path / "cpu.json", *rows)), "--json")
    tables = last_json(run)["tables"]
    assert "| a | 8.00 | 2.00 | 4.00 | 0.50 | – | 3.00 | – |" in tables["compile"]
    assert "inside the backend 4.00 × Inductor's speed" in tables["compile"]
    assert "| b | 4.0 | 1.0 | 4.00 | 2.0 | 3.0 |" in tables["memory"]
    assert "eager takes at least 4.00 × Weft's memory (b)" in tables["memory"]
    assert all("`cpu.json`" in table for table in tables.values())


def test_weights_of_fewer_bits_than_the_peers_are_summed_up_apart() -> None:
    rows = [gpu_row("gemv", "gemv_1_bf16", 1.0), gpu_row("gemv", "gemv_1_int4_32", 3.0), gpu_row("gemm", "g_fp8", 2.0)]
    tables = markdown([GpuResults({}, rows)])
    assert "the same weights on both sides: geometric mean 1.00" in tables["gpu-gemv"]
    assert "4 or 8 bits against 16: geometric mean 3.00" in tables["gpu-gemv"]
    assert tables["gpu-gemm"].count("geometric mean 2.00") == 1 and "on both sides" not in tables["gpu-gemm"]


def test_who_was_left_out_is_said_once() -> None:
    without = {"left_out": {"inductor": "no time"}}
    rows = [gpu_row("gemm", "a", 1.0, **without), gpu_row("gemm", "b", 1.0)]
    assert markdown([GpuResults({}, rows)])["gpu-gemm"].count("without inductor (no time): a\n") == 1
    assert "without inductor (no time): all cases" in markdown([GpuResults({}, rows[:1])])["gpu-gemm"]


def test_the_picture_has_every_case_with_a_peer_that_does_the_same(weft, tmp_path: Path) -> None:
    files = [
        processor_file(tmp_path / "c", timed("ops", "a", 2.0), timed("ops", "b", 0.5), timed("q", "c", 3, "weft f32")),
        processor_file(tmp_path / "d", timed("ops", "a", 4.0)),
        gpu_file(tmp_path / "e", gpu_row("gemv", "x_bf16", 1.0), gpu_row("gemv", "x_int4", 3.0)),
    ]
    found = read_files(files).ratios()
    assert found == {"a GPU": {"gemv": [1.0]}, "AArch64, 2 threads": {"ops": [4.0, 0.5]}}
    picture = tmp_path / "speed.svg"
    run = weft("bench", "chart", *map(str, files), "--output", str(picture), "--json")
    assert run.exit_code == 0 and last_json(run)["ratios"] == found
    root = ElementTree.fromstring(picture.read_text())
    kinds = [each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert sorted(kinds, key=str) == ["above", "above", "below"]
    assert "1.41× (2)" in picture.read_text() and "prefers-color-scheme: dark" in picture.read_text()


def test_a_wrong_result_has_no_speed(weft, tmp_path: Path) -> None:
    wrong = {**timed("ops", "b", 9.0), "wrong": {"weft": "differs from eager by 1.0"}}
    files = [
        processor_file(tmp_path / "c", timed("ops", "a", 2.0), wrong),
        gpu_file(tmp_path / "d", gpu_row("gemm", "x", 2.0), gpu_row("gemm", "y", 9.0, ok=False, wrong={"weft": "no"})),
    ]
    assert read_files(files).ratios() == {"a GPU": {"gemm": [2.0]}, "AArch64, 2 threads": {"ops": [2.0]}}
    table = last_json(weft("bench", "table", str(files[0]), "--json"))["tables"]["ops"]
    assert "| b | – | wrong | – |" in table and "geometric mean 2.00" in table


def test_a_picture_that_cannot_be_written_is_an_error_with_a_hint(weft, tmp_path: Path) -> None:
    file = processor_file(tmp_path / "c", timed("ops", "a", 2.0))
    run = weft("bench", "chart", str(file), "--output", str(tmp_path / "none" / "speed.svg"), "--json")
    assert run.exit_code == 2 and "--output" in last_json(run)["hint"]
