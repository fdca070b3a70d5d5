"""`weft bench cpu`: figures, tables and files from tiny runs; what fails is said, not hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.errors import WeftError
from weft.testing.bench import benchmark_models, benchmark_ops
from weft.testing.bench.benchmark import Limits, Race, Timing
from weft.testing.bench.benchmark_case import Case, CaseResult, run_case
from weft.testing.compile_times import CompileResult, CompileTime
from weft.tools.bench.report import Results, insert, line, summary

from .conftest import last_json

QUICK = ("--rounds", "2", "--seconds", "0.1")
BRIEF = Limits(rounds=2, least=2, seconds=0.1)


@pytest.fixture(autouse=True)
def no_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes ten seconds a case; the tests of what it needs are others'."""
    monkeypatch.setenv("CXX", "no-such-compiler")


def test_figures_of_a_quick_run(weft, tmp_path) -> None:
    run = weft("bench", "cpu", "--case", "gelu_tanh.cache", *QUICK, "--reports", str(tmp_path), "--json")
    assert run.exit_code == 0, run.output
    figures = last_json(run)
    (case,) = figures["cases"]
    assert case["name"] == "gelu_tanh.cache"
    assert case["eager"] > 0 and case["weft"] > 0 and case["inductor"] is None
    assert case["ratio_low"] <= case["ratio"] <= case["ratio_high"]
    assert figures["geomean"] == pytest.approx(case["ratio"]) == figures["worst"]
    assert figures["compile_ratio"] is None
    assert "no C++ compiler" in figures["left_out"][0]
    assert "2 threads" in figures["machine"] or "threads" in figures["machine"]
    assert (tmp_path / "bench-ops.svg").is_file()
    assert "| gelu_tanh.cache |" in (tmp_path / "bench-ops.md").read_text()


def test_the_small_case_is_judged_against_inductor_only(weft, tmp_path) -> None:
    clock = "--threads", "1", "--processor-time"
    run = weft("bench", "cpu", "--suite", "small", *clock, *QUICK, "--reports", str(tmp_path))
    assert run.exit_code == 0, run.output
    assert "add_2x2" in run.stdout and "left out: Inductor" in run.stdout


def test_unknown_suites_and_cases_are_errors_with_a_hint(weft) -> None:
    run = weft("bench", "cpu", "--suite", "gpus", "--json")
    assert run.exit_code == 2 and "models" in last_json(run)["hint"]
    run = weft("bench", "cpu", "--suite", "ops", "--case", "nothing*", "--json")
    assert run.exit_code == 2 and "softmax.cache" in last_json(run)["hint"]


def test_every_case_has_a_name_of_its_own() -> None:
    makers = (benchmark_ops.small_cases, benchmark_ops.op_cases, benchmark_models.model_cases)
    names = [case.name for make in (*makers, benchmark_models.train_cases) for case in make()]
    assert len(names) == len(set(names)) > 60
    assert sum(name.endswith(".cache") for name in names) >= 20
    assert sum(name.endswith(".64MB") for name in names) >= 20


@pytest.mark.parametrize("name", ["cross_entropy_backward.cache", "embedding_gradient.cache", "linear_8.cache"])
def test_operators_agree_with_eager(name: str) -> None:
    (case,) = (case for case in benchmark_ops.op_cases() if case.name == name)
    result = run_case(case, BRIEF)
    assert result.ok, result.trouble
    assert result.backend_seconds["weft"] > 0


def test_a_step_of_adamw_agrees_with_the_fused_one() -> None:
    result = run_case(Case("ops", "adamw", benchmark_ops.optimizing(3, 100)), BRIEF)
    assert result.ok, result.trouble


def test_a_training_step_is_a_case() -> None:
    from weft.testing.models import SMALL

    result = run_case(Case("train", "vit", benchmark_models.training(SMALL["vit"]), training=True), BRIEF)
    assert result.ok, result.trouble
    assert set(result.race.timings) == {"eager", "weft"}


def test_a_wrong_result_and_a_failing_peer_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.testing.bench import benchmark_case
    from weft.testing.bench.benchmark import Contender

    def broken(function: Callable[..., Any]) -> Callable[..., Any]:
        raise RuntimeError("no such thing as a compiler")

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*inputs) * 1.5

    def racers(**_: Any) -> list[Contender]:
        return [Contender("eager", lambda f: f), Contender("inductor", broken), Contender("weft", wrong)]

    monkeypatch.setattr(benchmark_case, "contenders", racers)
    case = Case("ops", "neg", benchmark_ops.calling(torch.neg, lambda: [torch.randn(4)]))
    result = run_case(case, BRIEF)
    assert not result.ok
    assert "inductor failed: RuntimeError: no such thing" in result.trouble
    assert "weft differs from eager by 5.0e-01" in result.trouble
    assert "failed" in line(result)
    assert not Results("here", [result]).ok


def measured(name: str, suite: str = "ops", **seconds: float) -> CaseResult:
    race = Race({who: Timing((took,) * 5) for who, took in seconds.items()})
    return CaseResult(suite, name, race, {"inductor": 20.0, "weft": 1.0})


def test_onnx_runtime_has_a_column_only_where_it_took_part() -> None:
    without = Results("here", [measured("a", "models", eager=4.0, inductor=2.0, weft=1.0)])
    assert "ONNX Runtime" not in without.markdown()["models"]
    assert without.figures()["cases"][0]["onnxruntime"] is None
    race = Race({who: Timing((took,) * 5) for who, took in {"eager": 4.0, "onnxruntime": 1.5, "weft": 1.0}.items()})
    race.peers = ("eager", "inductor", "onnxruntime")
    within = Results("here", [CaseResult("models", "b", race)])
    assert "| case | eager, ms | Inductor, ms | ONNX Runtime, ms | Weft, ms |" in within.markdown()["models"]
    (case,) = within.figures()["cases"]
    assert (case["onnxruntime"], case["peer"], case["ratio"]) == (1.5, "onnxruntime", pytest.approx(1.5))
    assert "onnxruntime 1500" in line(within.timed[0])


def test_the_summary_names_what_is_lost() -> None:
    cases = [measured("a", eager=4.0, inductor=2.0, weft=1.0), measured("b", eager=1.0, inductor=3.0, weft=2.0)]
    found = summary(cases)
    assert found["geomean"] == pytest.approx(1.0)
    assert (found["worst"], found["worst_case"], found["lost"]) == (0.5, "b", ["b"])
    assert found["compile_ratio"] == pytest.approx(1 / 20)
    assert summary([])["geomean"] is None


def test_compile_times_are_summed_over_models(tmp_path) -> None:
    times = {"inductor": [CompileTime(30.0, 40.0, 1)], "weft": [CompileTime(2.0, 8.0, 1), CompileTime(4.0, 8.0, 1)]}
    times["weft_warm"] = [CompileTime(0.2, 5.0, 1)]
    failed = CompileResult("other", {"weft": times["weft"]}, {"inductor": "no memory"})
    results = Results("here", [measured("a", eager=1.0, weft=1.0)], [CompileResult("some", times), failed])
    figures = results.figures()
    assert figures["compile_ratio"] == pytest.approx(0.1)
    assert figures["first_call_ratio"] == pytest.approx(0.2)
    assert figures["warm_seconds"] == pytest.approx(0.2)
    assert figures["ok"], "a peer's failure is not Weft's"
    assert "inductor failed: no memory" in line(failed)
    names = [path.name for path in results.write(tmp_path) if path.suffix != ".png"]
    assert names == ["bench-ops.svg", "bench-compile.svg", "bench-ops.md", "bench-compile.md"]
    assert len(results.tables()) == 5


def test_tables_are_put_into_a_text(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("# Speed\n<!-- bench models -->\nold\n<!-- end -->\nafter\n<!-- bench ops -->\n<!-- end -->\n")
    insert(text, {"models": "| new |\n", "ops": "| ops |\n"})
    insert(text, {"models": "| newer |\n"})
    found = text.read_text()
    assert "old" not in found and "| new |" not in found
    assert found.index("| newer |") < found.index("after") < found.index("| ops |")
    with pytest.raises(WeftError, match="no place for the suite train"):
        insert(text, {"train": ""})
