"""Tuning: the heaviest kernels get the schedule that a timer finds fastest, and what was found is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.seeds import generator
from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.microkernel import panel_form
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.config import Config
from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.lower.plan import build_plan
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, ReturnOp
from weft.passes.grouping.build_groups import SCHEDULE
from weft.passes.update_in_place import in_place_of
from weft.pipelines import compile_cpu, cpu_passes, run_passes
from weft.runtime.arrays import run_arrays
from weft.runtime.cache import DiskCache
from weft.runtime.executable import Executable
from weft.runtime.record import CompilationRecord
from weft.runtime.tune import Tuner, _own_sides, candidates, time_calls, tunable_kernels

ROWS, DEPTH, COLUMNS = 96, 320, 256


def layers(count: int = 3, rows: object = ROWS) -> FuncOp:
    """Equal layers of a product with frozen weights, one after the other, and a smaller product."""
    weights = {f"w{n}": Tensor(f32, (DEPTH, COLUMNS)) for n in range(count)}
    more = {f"v{n}": Tensor(f32, (COLUMNS, DEPTH)) for n in range(count)}
    function = FuncOp.make("layers", {"x": Tensor(f32, (rows, DEPTH)), **weights, **more})  # type: ignore[dict-item]
    x, *arguments = function.block.args
    b = GraphBuilder(function.block)
    for w, v in zip(arguments[:count], arguments[count:], strict=True):
        x = b.tanh(b.dot(b.relu(b.dot(x, w)), v))
    b.insert(ReturnOp.make([x]))
    function.attributes["constants"] = to_attribute(tuple(range(1, 1 + 2 * count)))
    return function


def grouped(function: FuncOp) -> FuncOp:
    run_passes(ModuleOp([function]), cpu_passes(Config()), CompilationRecord("layers"))
    return function


class Clock:
    """A timer that runs nothing: the first call of several takes longest, the last least."""

    def __init__(self, gain: float = 0.5) -> None:
        self.asked: list[int] = []
        self.gain = gain

    def __call__(self, calls: Sequence[object]) -> list[float]:
        self.asked.append(len(calls))
        return [self.gain**number for number in range(len(calls))]


def schedules(function: FuncOp) -> list[bool]:
    return [SCHEDULE in op.attributes for op in function.block.ops if isinstance(op, GroupOp)]


def test_equal_kernels_are_tuned_once_and_all_get_the_schedule() -> None:
    function, clock, said = grouped(layers()), Clock(), list[str]()
    kernels = tunable_kernels(function)
    assert sorted(len(kernel.groups) for kernel in kernels) == [3, 3]
    tuned = Tuner(host_target(), timer=clock, progress=said.append, threads=1).tune(function)
    assert [each.uses for each in tuned] == [3, 3] and all(each.sides for each in tuned)
    assert len([each for each in schedules(function) if each]) == 6
    assert len(said) == 2 and said[0].startswith("tuning 1 of 2, dot ×3")
    assert clock.asked[:2] == [1, 1]  # each by itself first, to know which are heavy


def test_what_is_not_faster_changes_nothing() -> None:
    function = grouped(layers())
    tuned = Tuner(host_target(), timer=Clock(gain=0.99), progress=lambda _: None, threads=1).tune(function)
    assert not any(schedules(function)) and not any(each.sides for each in tuned)


def test_the_winner_is_kept_by_kernel_and_threads(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)

    def tuner(clock: Clock, threads: int = 1) -> Tuner:
        return Tuner(host_target(), cache, clock, lambda _: None, threads)

    first, second, other = Clock(), Clock(), Clock()
    before, after = grouped(layers()), grouped(layers(2))
    tuned = tuner(first).tune(before)
    again = tuner(second).tune(after)
    assert second.asked == [] and {each.sides for each in again} == {each.sides for each in tuned}
    assert any(schedules(after))
    tuner(other, threads=2).tune(grouped(layers(2)))
    assert other.asked


def test_light_kernels_are_left_alone() -> None:
    function = grouped(layers())
    kernels = tunable_kernels(function)
    tuner = Tuner(host_target(), timer=Clock(), progress=lambda _: None, threads=1)
    kernels[0].seconds, kernels[1].seconds = 1.0, 0.01
    assert tuner._heaviest(kernels) == [kernels[0]]


def test_unknown_sizes_and_other_processors_are_not_tuned() -> None:
    assert tunable_kernels(grouped(layers(rows=symbol("s0")))) == []
    said: list[str] = []
    other = CpuTarget("x86_64-unknown-linux-gnu", "some-other", "")
    assert Tuner(other, progress=said.append).tune(grouped(layers())) == [] and "some-other" in said[0]


def test_candidates_are_multiples_and_small_enough() -> None:
    assert list(candidates((96, 128, 384), 1, 32)) == [(96, 64, 384), (96, 256, 384)]
    assert list(candidates((4, 128, 384), 0, 4)) == []
    assert list(candidates((96, 256, 1024), 2, 8)) == [(96, 256, 512)]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_program_computes_the_same_with_other_tiles(axis: int) -> None:
    rng = generator()
    arrays = [rng.standard_normal((ROWS, DEPTH)).astype(np.float32)]
    arrays += [rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32) / 16]
    arrays += [rng.standard_normal((COLUMNS, DEPTH)).astype(np.float32) / 16]
    expected = np.tanh(np.maximum(arrays[0].astype(np.float64) @ arrays[1], 0) @ arrays[2])

    function = grouped(layers(1))
    for kernel in tunable_kernels(function):
        own = _own_sides(kernel, Tuner(host_target())._panel_form)
        for sides in list(candidates(own, axis, (4, 32, 8)[axis]))[-1:]:
            for group in kernel.groups:
                group.attributes[SCHEDULE] = to_attribute(sides)
    planned = build_plan(function, partial(panel_form, host_target()))
    code = compile_object(emit_kernels(planned.kernels, host_target()), host_target())
    (found,) = run_arrays(Executable(planned.plan, code, planned.prepare), arrays)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_products_that_add_to_what_is_there_are_tuned_too() -> None:
    weights = {name: Tensor(f32, (DEPTH, COLUMNS)) for name in ("w", "v")}
    function = FuncOp.make("sums", {"x": Tensor(f32, (ROWS, DEPTH)), **weights})
    b, (x, w, v) = GraphBuilder(function.block), function.block.args
    b.insert(ReturnOp.make([b.tanh(b.add(b.dot(x, w), b.dot(b.relu(x), v)))]))
    function.attributes["constants"] = to_attribute((1, 2))
    kernels = tunable_kernels(grouped(function))
    assert len(kernels) == 2 and sum(len(in_place_of(each.groups[0])) for each in kernels) == 1
    Tuner(host_target(), timer=Clock(), threads=1).tune(function)
    assert schedules(function) == [True, False, True]  # between them relu has a kernel of its own
    rng = generator()
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((ROWS, DEPTH), *[(DEPTH, COLUMNS)] * 2)]
    planned = build_plan(function, partial(panel_form, host_target()))
    code = compile_object(emit_kernels(planned.kernels, host_target()), host_target())
    (found,) = run_arrays(Executable(planned.plan, code, planned.prepare), arrays)
    wide = [array.astype(np.float64) for array in arrays]
    np.testing.assert_allclose(found, np.tanh(wide[0] @ wide[1] + np.maximum(wide[0], 0) @ wide[2]), atol=1e-4)


def test_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[Clock] = []

    def tuner(*arguments: object, **named: object) -> Tuner:
        clocks.append(Clock())
        return Tuner(*arguments, **named, timer=clocks[-1], progress=lambda _: None)  # type: ignore[arg-type]

    monkeypatch.setattr("weft.runtime.tune.Tuner", tuner)
    compiled = compile_cpu(layers(2), Config(tune=True, cache=False))
    assert len(clocks) == 1 and clocks[0].asked
    assert "tune" in compiled.report.seconds
    compile_cpu(layers(1), Config())
    assert len(clocks) == 1


def test_calls_take_turns() -> None:
    order: list[int] = []
    seconds = time_calls([lambda: order.append(0), lambda: order.append(1)])
    assert len(seconds) == 2 and all(each > 0 for each in seconds)
    assert order.index(1) < len(order) - 1 - order[::-1].index(0)
