"""`weft bench func`: transformations by Weft against torch's, judged by float64; who fails is said, and left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from weft.runtime.record import compilation
from weft.testing.bench import transform_race
from weft.testing.bench.benchmark import COMPILED, Contender, Limits, processor_seconds
from weft.testing.bench.benchmark_case import CaseResult
from weft.testing.bench.benchmark_transforms import transform_cases
from weft.testing.bench.transform_race import run_transform_case
from weft.testing.devices import HostDevice

from .conftest import last_json

BRIEF = Limits(rounds=2, least=2, seconds=0.1)
CASES = {case.name: case for case in transform_cases()}


@pytest.fixture(autouse=True)
def no_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes ten seconds a case; the tests of what it needs are others'."""
    monkeypatch.setenv("CXX", "no-such-compiler")


def test_figures_a_journal_and_a_file_of_results(weft, tmp_path) -> None:
    asked = ["bench", "func", "--case", "jacobian_batched", "--rounds", "2", "--seconds", "0.1", "--threads", "1"]
    asked += ["--reports", str(tmp_path), "--results", str(tmp_path), "--json"]
    run = weft(*asked)
    assert run.exit_code == 0, run.output
    figures = last_json(run)
    (case,) = figures["cases"]
    assert (case["suite"], case["name"], case["inductor"]) == ("func", "jacobian_batched", None)
    assert case["weft"] > 0 and case["eager"] > 0 and case[COMPILED] > 0
    assert case["backend_seconds"]["weft"] > 0
    assert 0 < case["errors_of_float64"]["weft"] < 1e-5
    assert "no C++ compiler" in figures["left_out"][0]
    (path,) = tmp_path.glob("*-cpu-func-1-threads.json")
    assert json.loads(path.read_text())["cases"] == figures["cases"]
    assert "torch.func by Weft, ms" in (tmp_path / "bench-func.md").read_text()
    again = weft(*asked, "--resume")
    assert last_json(again)["cases"] == figures["cases"], "from the journal"


def test_unknown_cases_devices_and_clocks_are_errors(weft, tmp_path) -> None:
    run = weft("bench", "func", "--case", "nothing", "--json", "--reports", str(tmp_path))
    assert run.exit_code == 2 and "hessian_mlp" in last_json(run)["hint"]
    run = weft("bench", "func", "--device", "cuda", "--processor-time", "--json", "--reports", str(tmp_path))
    assert run.exit_code == 2


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_is_right_by_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [Contender("eager", lambda f: f), Contender("weft", lambda f: f)]
    monkeypatch.setattr(transform_race, "transform_contenders", lambda device: two)
    result = run_transform_case(CASES[name], HostDevice(), BRIEF, seconds_of=processor_seconds)
    assert result.ok and not result.fallbacks, result.trouble
    assert set(result.race.timings) == {"eager", "weft"}


def test_who_fails_or_is_wrong_is_said_and_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Callable[..., Any]) -> Callable[..., Any]:
        raise RuntimeError("no such thing as a compiler")

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*inputs) * 1.5

    racers = [Contender("eager", lambda f: f), Contender("inductor", broken), Contender("weft", wrong)]
    monkeypatch.setattr(transform_race, "transform_contenders", lambda device: racers)
    result = run_transform_case(CASES["hessian_mlp"], HostDevice(), BRIEF)
    assert not result.ok and set(result.race.timings) == {"eager", "weft"}
    assert "inductor failed: RuntimeError: no such thing" in result.trouble
    assert "weft" in result.wrong and "against float64" in result.wrong["weft"]
    assert CaseResult.of_record(json.loads(json.dumps(result.record()))) == result


def test_without_eager_others_are_held_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Callable[..., Any]) -> Callable[..., Any]:
        raise RuntimeError("no memory")

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*inputs) * 1.5

    racers = [Contender("eager", broken), Contender("inductor", lambda f: f), Contender("weft", wrong)]
    monkeypatch.setattr(transform_race, "transform_contenders", lambda device: racers)
    result = run_transform_case(CASES["hessian_mlp"], HostDevice(), BRIEF)
    assert set(result.wrong) == {"weft"} and "eager failed: RuntimeError: no memory" in result.trouble


def test_without_float64_others_are_held_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*inputs) * 1.5

    def short(given: Any) -> Any:
        raise RuntimeError("no memory")

    racers = [Contender("eager", lambda f: f), Contender("weft", wrong)]
    monkeypatch.setattr(transform_race, "transform_contenders", lambda device: racers)
    monkeypatch.setattr(transform_race, "widen", short)
    result = run_transform_case(CASES["hessian_mlp"], HostDevice(), BRIEF)
    assert set(result.wrong) == {"weft"} and set(result.race.timings) == {"eager", "weft"}


def test_a_graph_that_is_left_to_torch_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaving(function: Callable[..., Any]) -> Callable[..., Any]:
        with compilation("left") as record:
            record.error = "nothing is supported today"
        return function

    racers = [Contender("eager", lambda f: f), Contender(COMPILED, leaving)]
    monkeypatch.setattr(transform_race, "transform_contenders", lambda device: racers)
    result = run_transform_case(CASES["hessian_mlp"], HostDevice(), BRIEF)
    assert set(result.race.timings) == {"eager"}
    assert f"{COMPILED} failed: left a graph to torch: nothing is supported today" in result.trouble
