"""Interleaved measurement: who takes turns with whom, what a ratio says, and that failures are reported."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import torch

from weft.errors import UnsupportedError
from weft.testing.bench import benchmark
from weft.testing.bench.benchmark import Limits, Race, Timing, contenders, interleave, own_code, paired_ratio
from weft.testing.bench.charts import Bar, Chart, has_matplotlib, svg, write_chart
from weft.testing.bench.onnx_runtime import in_onnx_runtime
from weft.testing.bench.onnx_session import missing_packages


def test_contenders_take_turns_and_the_order_changes() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("eager", "weft")}
    race = interleave(calls, Limits(rounds=4, least=4, sample_seconds=0))
    assert order[-8:] == ["eager", "weft", "weft", "eager", "eager", "weft", "weft", "eager"]
    assert all(len(timing.seconds) == 4 for timing in race.timings.values())


class Clock:
    """A clock that only its naps move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(benchmark, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def nap(self, seconds: float) -> None:
        self.now += seconds


def test_a_slower_peer_has_a_ratio_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    naps = {"eager": 0.03, "inductor": 0.02, "weft": 0.004}
    calls = {name: (lambda nap=nap: clock.nap(nap)) for name, nap in naps.items()}
    race = interleave(calls, Limits(rounds=7, least=7))
    assert race.best_peer == "inductor"
    assert race.ratio is not None
    assert 1 < race.ratio.low <= race.ratio.median <= race.ratio.high


def test_few_rounds_when_calls_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    race = interleave({"weft": lambda: clock.nap(0.02)}, Limits(rounds=100, least=3, seconds=0.1))
    assert 3 <= len(race.timings["weft"].seconds) <= 5
    assert race.ratio is None


def test_a_failing_contender_is_reported_and_the_rest_go_on() -> None:
    def broken() -> None:
        raise RuntimeError("no vectors here\nand a long tail")

    calls_left = [4]

    def dies_later() -> None:
        calls_left[0] -= 1
        if calls_left[0] < 0:
            raise OSError("gone")

    calls = {"eager": lambda: None, "inductor": broken, "other": dies_later, "weft": lambda: None}
    race = interleave(calls, Limits(rounds=3, least=3, sample_seconds=0))
    assert race.failures == {"inductor": "RuntimeError: no vectors here", "other": "OSError: gone"}
    assert set(race.timings) == {"eager", "weft"}


def test_the_interval_of_paired_ratios_is_narrow_where_the_machine_drifts_under_both() -> None:
    drift = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    ratio = paired_ratio(Timing(tuple(2 * value for value in drift)), Timing(tuple(drift)))
    assert ratio.low == ratio.median == ratio.high == pytest.approx(2)
    assert str(ratio) == "2.00 (2.00–2.00)"
    assert Timing(tuple(drift)).spread > 0.5


def test_inductor_is_left_out_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert benchmark.cpp_compiler() is None
    assert [each.name for each in contenders()] == ["eager", "weft"]


def test_weft_and_eager_race_with_code_of_their_own() -> None:
    def double(x: torch.Tensor, *, by: float = 2.0) -> torch.Tensor:
        return x * by

    x = torch.randn(3)
    found = {each.name: each.compile(own_code(double)) for each in contenders() if each.name != "inductor"}
    race = Race()
    interleave({name: (lambda run=run: run(x)) for name, run in found.items()}, Limits(rounds=2, least=2), race=race)
    assert not race.failures
    assert set(race.timings) == {"eager", "weft"}
    assert own_code(double).__code__ is not double.__code__
    torch.testing.assert_close(found["weft"](x), double(x))


CHART = Chart("a < b", {"case & one": [Bar("eager", 1.0, "1 ms"), Bar("onnx", 0.5, "0.5 ms")]}, "shorter", line=1.0)


def test_a_chart_is_well_formed_svg() -> None:
    root = ElementTree.fromstring(svg(CHART))
    texts = [element.text for element in root.iter() if element.text]
    assert "a < b" in texts and "case & one" in texts and "0.5 ms" in texts


def test_charts_are_written_as_files(tmp_path) -> None:
    written = write_chart(CHART, tmp_path / "new" / "chart")
    assert [path.suffix for path in written] == ([".svg", ".png"] if has_matplotlib() else [".svg"])
    assert all(path.stat().st_size > 500 for path in written)


def test_onnx_runtime_takes_part_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "missing_packages", lambda: ["onnxruntime"])
    assert "onnxruntime" not in [each.name for each in contenders(exported=True)]
    monkeypatch.setattr(benchmark, "missing_packages", list)
    assert "onnxruntime" in [each.name for each in contenders(exported=True)]
    assert "onnxruntime" not in [each.name for each in contenders()]


@pytest.mark.skipif(bool(missing_packages()), reason="needs onnxruntime and onnxscript")
def test_a_module_runs_in_onnx_runtime() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.linear(x)
            return {"y": y, "z": torch.tanh(y)}

    model, x = Model().eval(), torch.randn(3, 8)
    run = in_onnx_runtime(model)
    with torch.no_grad():
        for found, expected in zip(run(x=x), model(x=x).values(), strict=True):
            torch.testing.assert_close(found, expected)


def test_onnx_runtime_takes_modules_only() -> None:
    with pytest.raises(UnsupportedError, match="takes modules"):
        in_onnx_runtime(torch.neg)
