"""Tuning for a GPU, with a timer that runs nothing: what it is asked to measure, what is chosen, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.ir.expr import Size, symbol
from weft.ir.types import DType, Tensor, bf16, f32
from weft.lower.machine import gpu_machine
from weft.lower.schedule.schedule import given_blocks
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, ReturnOp
from weft.pipelines import compile_nvidia, nvidia_passes, run_passes
from weft.runtime.cache import DiskCache
from weft.runtime.record import CompilationRecord
from weft.runtime.tune_device import Candidate, DeviceTuner

TARGET = target_named("sm_90a")


def layers(rows: Size = 2048, dtype: DType = bf16, count: int = 2) -> FuncOp:
    side = 1024
    arguments = {"x": Tensor(dtype, (rows, side)), **{f"w{n}": Tensor(dtype, (side, side)) for n in range(count)}}
    function = FuncOp.make("layers", arguments)
    x, *weights = function.block.args
    b = GraphBuilder(function.block)
    for w in weights:
        x = b.silu(b.dot(x, w))
    b.insert(ReturnOp.make([x]))
    return function


def grouped(function: FuncOp) -> FuncOp:
    run_passes(
        ModuleOp([function]), nvidia_passes(Config(), target_named("sm_90a").capabilities), CompilationRecord("layers")
    )
    return function


class Clock:
    """One of several candidates, the second if not told, takes `gain` of the time of the others."""

    def __init__(self, gain: float, which: int = 1) -> None:
        self.gain, self.which = gain, which
        self.asked: list[int] = []

    def __call__(self, function: FuncOp, programs: Sequence[Candidate]) -> list[float]:
        self.asked.append(len(programs))
        assert all(len(code.launches) == 1 for _, code in programs)
        return [1e-3 * (self.gain if number == self.which else 1.0) for number in range(len(programs))]


def tuner(clock: Clock, cache: DiskCache | None = None) -> DeviceTuner:
    return DeviceTuner(TARGET, gpu_machine(), clock, nvidia_kernel_passes(), cache, progress=lambda text: None)


def schedules(function: FuncOp) -> list[str]:
    return [str(given_blocks(op, "dot")) for op in function.block.ops if isinstance(op, GroupOp)]


@pytest.mark.parametrize("gain", [0.5, 0.99])
def test_the_fastest_is_chosen_for_all_equal_kernels(gain: float) -> None:
    function, clock = grouped(layers()), Clock(gain)
    (tuned,) = tuner(clock).tune(function)
    assert clock.asked == [5] and tuned.uses == 2
    assert (tuned.after < tuned.before) is (gain < 0.9)
    (schedule,) = set(schedules(function))
    assert "predicted" in schedule and f"{1000 * (gain if gain < 0.9 else 1):.3g} µs measured" in schedule


def test_clusters_are_tried_where_tiles_wait_for_the_second_level_cache() -> None:
    compiled = compile_nvidia(layers(), Config(tune=True, cache=False), TARGET, Clock(0.5, which=4))
    assert all("in clusters of 2>" in kernel.schedule for kernel in compiled.report.kernels)
    assert {launch.cluster for launch in compiled.code.launches.values()} == {2}
    tuner(clock := Clock(0.5)).tune(grouped(layers(1 << 16)))
    assert clock.asked == [4]  # tensor cores set the pace there


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    cache, clock = DiskCache(tmp_path), Clock(0.5)
    tuner(clock, cache).tune(first := grouped(layers()))
    tuner(clock, cache).tune(second := grouped(layers()))
    assert len(clock.asked) == 1 and schedules(first) == schedules(second)


@pytest.mark.parametrize("function", [layers(symbol("n")), layers(dtype=f32), layers(8)], ids=["unknown", "f32", "few"])
def test_what_has_no_such_tiles_is_left(function: FuncOp) -> None:
    clock = Clock(0.5)
    assert tuner(clock).tune(grouped(function)) == [] and not clock.asked


def test_the_report_says_what_was_measured() -> None:
    compiled = compile_nvidia(layers(), Config(tune=True, cache=False), TARGET, Clock(0.5))
    assert "tune" in compiled.report.seconds
    assert all("µs measured" in kernel.schedule for kernel in compiled.report.kernels)
