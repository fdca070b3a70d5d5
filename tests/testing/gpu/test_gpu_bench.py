"""`weft bench gpu`, rehearsed on the CPU: rows and figures, shards and journals, children that die, result files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from weft.errors import NoDeviceError, WeftError
from weft.testing import child as child_module
from weft.testing.bench.benchmark import Contender, Limits
from weft.testing.child import Child, serve_requests
from weft.testing.conformance.journal import Journal, part
from weft.testing.devices import HostDevice, device_named, is_usable
from weft.testing.gpu import case as case_module
from weft.testing.gpu.case import GpuCase, Place, Work, run_gpu_case
from weft.testing.gpu.gemv import gemv_cases
from weft.testing.gpu.memory import memory_cases
from weft.testing.gpu.peers import MAX_AUTOTUNE, eager
from weft.testing.gpu.runner import Setting, key, run_cases
from weft.testing.gpu.suites import SUITES, case_named
from weft.tools.bench.gpu_report import GpuResults, cells, markdown, read_results, summary
from weft.tools.cli import app

BRIEF = Limits(rounds=2, least=2, seconds=0.1, sample_seconds=0.0)
HERE = Place(HostDevice(), 4096)


def last_json(output: str) -> Any:
    return json.loads(output.strip().splitlines()[-1])


def doubling(place: Place) -> Work:
    x = place.normal(64, 64, dtype=torch.float32)

    def start(contender: Contender) -> Callable[[], Any]:
        run = contender.compile(lambda x: x * 2)
        return lambda: run(x)

    return Work(start, [eager()], "TB/s", 2 * x.nbytes, bytes=2 * x.nbytes)


def test_a_row_has_the_figures_that_are_asked_for() -> None:
    row = run_gpu_case(GpuCase("memory", "double", doubling), HERE, BRIEF)
    assert row["ok"], row
    assert (row["name"], row["unit"], row["peer_name"]) == ("double", "TB/s", "eager")
    assert row["weft"] == pytest.approx(2 * 64 * 64 * 4 / row["seconds"]["weft"] / 1e12)
    assert row["share_of_limit"] == pytest.approx(row["seconds"]["copy"] / row["seconds"]["weft"])
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert row["kernels"] == 1 and row["backend_seconds"]["weft"] > 0
    assert json.loads(json.dumps(row)) == row


def test_work_bound_by_arithmetic_is_held_against_the_nominal_rate() -> None:
    row = run_gpu_case(SUITES["gemm"]()[1], HERE, BRIEF)
    assert row["ok"], row
    share = max(row["seconds"]["copy"], row["flops"] / 1e12) / row["seconds"]["weft"]
    assert row["share_of_limit"] == pytest.approx(share)


def test_wrong_results_and_failures_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(options: Any = None) -> Contender:
        return Contender("weft", lambda function: lambda x: function(x) * 1.5)

    monkeypatch.setattr(case_module, "weft_contender", wrong)
    row = run_gpu_case(GpuCase("memory", "double", doubling), HERE, BRIEF)
    assert not row["ok"] and "differs from eager" in row["wrong"]["weft"]
    assert "differs" in cells(row)[-1]


def test_who_takes_long_is_left_out_where_there_is_no_time() -> None:
    def build(place: Place) -> Work:
        made = doubling(place)
        return Work(made.start, [eager(), eager(MAX_AUTOTUNE)])

    row = run_gpu_case(GpuCase("memory", "double", build), HERE, BRIEF, thorough=False)
    assert row["left_out"] == {MAX_AUTOTUNE: "there was no time for it"}
    assert row["unit"] == "ms" and row["share_of_limit"] is None


def test_graphs_are_cases() -> None:
    row = run_gpu_case(gemv_cases()[0], HERE, BRIEF)
    assert row["ok"], (row["wrong"], row["failures"], row["uncompiled"])


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for make in SUITES.values() for case in make()]
    assert len(names) == len(set(names)) > 80
    assert all(case.suite == suite for suite, make in SUITES.items() for case in make())
    assert case_named("gemv", "gemv_1x14336x4096_bf16").suite == "gemv"
    with pytest.raises(WeftError, match="no case called"):
        case_named("gemv", "nothing")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_an_error_that_says_so() -> None:
    with pytest.raises(NoDeviceError, match="no CUDA device"):
        device_named("cuda")
    run = CliRunner().invoke(app, ["bench", "gpu", "--json"])
    assert run.exit_code == 1 and last_json(run.stdout)["error"] == "NoDeviceError"
    assert is_usable("cpu")


@pytest.mark.slow
def test_parts_of_a_run_share_a_journal_and_a_file(tmp_path: Path) -> None:
    common = ["bench", "gpu", "--rehearse", "--suite", "memory", "--case", "add_rms_norm_*bf16", "--rounds", "2"]
    common += ["--seconds", "0.1", "--reports", str(tmp_path), "--json"]
    first = CliRunner().invoke(app, [*common, "--shard", "0/2"])
    assert first.exit_code == 0, first.output
    rest = CliRunner().invoke(app, [*common, "--resume"])
    figures = last_json(rest.stdout)
    assert figures["ok"] and figures["suites"]["memory"]["cases"] == 3
    rows = {row["name"]: row for row in figures["cases"]}
    assert all(rows[row["name"]] == row for row in last_json(first.stdout)["cases"]), "rows were measured again"
    (file,) = tmp_path.glob("*-gpu-memory.json")
    found = read_results(file)
    assert {row["name"] for row in found.rows} == rows.keys()
    text = tmp_path / "README.md"
    text.write_text("<!-- bench gpu-memory -->\n<!-- end -->\n")
    run = CliRunner().invoke(app, ["bench", "table", str(file), "--into", str(text)])
    assert run.exit_code == 0 and "| add_rms_norm_16384x4096_bf16 |" in text.read_text()


def test_a_table_of_two_runs_has_each_case_as_it_was_last(tmp_path: Path) -> None:
    row: dict[str, Any] = {"suite": "gemv", "unit": "µs", "peer": None, "peer_name": None, "ratio": None, "ok": True}
    row |= {"ratio_low": None, "ratio_high": None, "share_of_limit": None, "backend_seconds": {}, "failures": {}}
    row |= {"wrong": {}, "left_out": {}, "claims": [], "fallbacks": [], "uncompiled": None}
    runs = [
        GpuResults({"commit": "aaa", "date": "d"}, [{**row, "name": n, "weft": 1.0} for n in ("one", "two")]),
        GpuResults({"commit": "bbb", "date": "d"}, [{**row, "name": n, "weft": 2.0} for n in ("two", "three")]),
    ]
    text = markdown(runs)["gpu-gemv"]
    assert [line.split(" | ")[:2] for line in text.splitlines()[2:5]] == [
        ["| one", "1"],
        ["| two", "2"],
        ["| three", "2"],
    ]
    assert "commit aaa, d: one\n" in text and "commit bbb, d: two, three\n" in text


def test_bad_requests_are_errors_with_a_hint(tmp_path: Path) -> None:
    for given in (["--suite", "cpu"], ["--suite", "gemv", "--case", "x*"], ["--shard", "3/2"]):
        run = CliRunner().invoke(app, ["bench", "gpu", "--rehearse", *given, "--reports", str(tmp_path), "--json"])
        assert run.exit_code == 2 and last_json(run.stdout)["hint"]
    with pytest.raises(WeftError, match="cannot be read"):
        read_results(tmp_path / "none.json")
    for text in ("[1]", "{}", '{"cases": [{"name": "of a CPU"}]}', '{"cases": 3}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(WeftError, match="holds no results"):
            read_results(tmp_path / "other.json")


def test_no_case_is_begun_after_the_budget(tmp_path: Path) -> None:
    cases = memory_cases()[:3]
    outcome = run_cases(cases, Setting("cpu", 4096, 2, 0.1, budget=-1.0), Journal(tmp_path / "j"))
    assert outcome.not_begun == [key(case) for case in cases] and not outcome.rows
    assert outcome.about["driver"] is None


def test_a_case_that_takes_too_long_is_said(tmp_path: Path) -> None:
    (case,) = (case for case in SUITES["models"]() if case.name == "gpt2_1")
    setting = Setting("cpu", 4096, 2, 0.1, case_limit=0.2)
    outcome = run_cases([case], setting, Journal(tmp_path / "j"))
    assert not outcome.rows[0]["ok"] and "ended after" in outcome.rows[0]["error"]
    assert cells(outcome.rows[0])[1] == "failed"
    assert summary(outcome.rows)["failed"] == ["gpt2_1"]


def test_a_journal_outlives_a_line_that_was_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "j", "now")
    journal.add("a", {"x": 1})
    journal.add("b", {"x": 2})
    Journal(tmp_path / "deep" / "j", "before").add("c", {"x": 3})
    with (tmp_path / "deep" / "j").open("a") as file:
        file.write('{"name": "d", "rec')
    assert journal.results() == {"a": {"x": 1}, "b": {"x": 2}}
    journal.forget(["a"])
    assert journal.results() == {"b": {"x": 2}}
    assert part("abcdef", (1, 3)) == ["b", "e"] and part("ab", None) == ["a", "b"]


def test_figures_of_a_suite() -> None:
    row = {"suite": "memory", "ok": True, "ratio_high": 0.9, "backend_seconds": {"inductor": 4.0, "weft": 1.0}}
    rows = [{**row, "name": "a", "ratio": 0.5, "share_of_limit": 0.9}, {**row, "name": "b", "ratio": 2.0, "ok": False}]
    found = summary(rows)
    assert (found["geomean"], found["worst_case"], found["least_share_case"]) == (pytest.approx(1.0), "a", "a")
    assert (found["compile_ratio"], found["failed"]) == (pytest.approx(0.25), ["b"])
    assert not GpuResults({}, rows).ok


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], child_module.Answer], None]:
    def handle(request: dict[str, Any], answer: child_module.Answer) -> None:
        match request["do"]:
            case "die":
                os._exit(3)
            case "sleep":
                time.sleep(60)
        answer({"said": settings["word"]})

    return handle


def test_a_child_that_died_is_started_again(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    with Child("test_gpu_bench", {"word": "yes"}, environment) as child:
        child.send({"do": "talk"})
        assert child.receive(60) == {"said": "yes"}
        child.send({"do": "die"})
        assert child.receive(60) is None
        assert "exit status 3" in child.epitaph(60) and not child.timed_out
        child.send({"do": "sleep"})
        assert child.receive(0.2) is None and child.timed_out
        assert child.epitaph(0.2) == "ended after 0.2 s"
        child.send({"do": "talk"})
        assert child.receive(60) == {"said": "yes"}


if __name__ == "__main__":
    serve_requests(_prepare)


def test_own_kernels_stand_beside_chosen_ones() -> None:
    row = run_gpu_case(SUITES["gemm_sweep"]()[0], HERE, BRIEF)
    assert row["ok"], row
    assert row["own_ratio"] > 0
    assert "weft own" in row["seconds"] and row["kernels"] <= 1, "kernels of the own form are not counted twice"
    (text,) = markdown([GpuResults({"date": "d", "commit": "c"}, [row])]).values()
    heading, _, line = text.splitlines()[:3]
    place = heading.split(" | ").index("own kernels × best peer")
    assert line.split(" | ")[place] == f"{row['own_ratio']:.2f}"
    assert summary([row])["own_geomean"] == pytest.approx(row["own_ratio"])


def test_sweeps_draw_the_same_shapes_each_time() -> None:
    for suite, count in (("gemm_sweep", 200), ("attention_sweep", 60)):
        names = [case.name for case in SUITES[suite]()]
        assert names == [case.name for case in SUITES[suite]()]
        assert len(names) == count
    assert {name[:2] for name in (case.name for case in SUITES["gemm_sweep"]())} == {"nn", "nt", "tn", "tt"}


@pytest.mark.parametrize("name", ["layer_norm_backward_8192x768_bf16", "cross_entropy_with_gradient_8192x128256_bf16"])
def test_gradients_are_judged_and_timed(name: str) -> None:
    row = run_gpu_case(case_named("backward", name), HERE, BRIEF)
    assert row["ok"], row
    assert row["share_of_limit"] > 0
