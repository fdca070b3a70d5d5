"""A profile has the time of every step of every call, and writes it as a trace that Perfetto reads."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.config import Config
from weft.errors import WeftError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_cpu
from weft.runtime.arrays import run_arrays
from weft.runtime.executable import Executable
from weft.runtime.profile import active_profile


@pytest.fixture(scope="module")
def program() -> Executable:
    """Two kernels: sums along either dimension do not fuse."""
    function = FuncOp.make("sums", {"x": Tensor(f32, (symbol("s0"), 64))})
    b = GraphBuilder(function.block)
    x = b.exp(function.block.args[0])
    b.insert(
        ReturnOp.make([b.sum(x, dims=(1,), keep=False), b.sum(b.sum(x, dims=(1,), keep=False), dims=(0,), keep=False)])
    )
    compiled = compile_cpu(function, Config())
    return Executable(compiled.plan, compiled.code)


def call(program: Executable, rows: int = 5) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    sums, total = run_arrays(program, [x])
    np.testing.assert_allclose(sums, np.exp(x).sum(1), rtol=1e-5)
    np.testing.assert_allclose(total, np.exp(x).sum(), rtol=1e-5)


def test_every_step_of_every_call_is_timed(program: Executable) -> None:
    with weft.profile() as profile:
        call(program, 5)
        call(program, 7)
        call(program, 5)
    steps = program.plan.steps
    assert [event.step for event in profile.steps] == [*steps] * 3
    assert [event.sizes["s0"] for event in profile.calls] == [5, 7, 5]
    assert all(event.start < event.end for event in profile.steps)
    for outer in profile.calls:
        inner = [event for event in profile.steps if outer.start <= event.start and event.end <= outer.end]
        assert len(inner) == len(steps)
    rows = profile.rows()
    assert sum(row.calls for row in rows) == 3 * len(steps)
    assert rows == sorted(rows, key=lambda row: -row.nanoseconds)
    assert str(profile).count("%") == len(rows)


def test_bytes_are_those_of_the_tensors(program: Executable) -> None:
    with weft.profile() as profile:
        call(program, 5)
    first = profile.steps[0]
    assert first.work()["bytes"] >= 5 * 64 * 4 and first.work()["programs"] >= 1


def test_the_trace_is_in_chromes_format(program: Executable, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with weft.profile(path):
        call(program)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in timed} == {"call", "kernel"}
    assert all(
        event["ts"] >= 0 and event["dur"] > 0 and {"name", "pid", "tid", "args"} <= set(event) for event in timed
    )
    assert sum(event["cat"] == "kernel" for event in timed) == len(program.plan.steps)


def test_compilations_are_in_the_trace(tmp_path: Path) -> None:
    function = FuncOp.make("negative", {"x": Tensor(f32, (4,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.neg(function.block.args[0])]))
    with weft.profile() as profile:
        compile_cpu(function, Config())
    stages = [event["name"] for event in profile.trace()["traceEvents"] if event.get("cat") == "compile"]
    assert "llvm" in stages and "simplify" in stages


def test_nothing_is_noted_outside(program: Executable) -> None:
    with weft.profile() as profile:
        assert active_profile() is profile
    assert active_profile() is None
    call(program)
    assert profile.steps == [] and profile.ended is not None


def test_the_trace_is_written_when_the_program_fails(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(KeyError), weft.profile(path):
        raise KeyError("mine")
    assert path.exists() and active_profile() is None


def test_threads_are_told_apart(program: Executable) -> None:
    with weft.profile() as profile:
        threads = [threading.Thread(target=call, args=(program, rows)) for rows in (3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({event.thread for event in profile.calls}) == 2
    assert len(profile.steps) == 2 * len(program.plan.steps)


def test_torch_calls_and_libraries_are_steps_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def f(x, w):
        return torch.linalg.svdvals(torch.relu(x @ w))

    torch.manual_seed(0)
    x, w = torch.randn(6, 16), torch.randn(16, 8)
    compiled = torch.compile(f, backend="weft", options={"cache": False})
    with torch.no_grad():
        expected = compiled(x, w)
        with weft.profile(tmp_path / "trace.json") as profile:
            found = compiled(x, w)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(found, f(x, w))
    assert any("svd" in row.name and "(torch)" in row.name for row in profile.rows())
    categories = {event.get("cat") for event in profile.trace()["traceEvents"]}
    assert {"call", "torch"} <= categories


def test_a_trace_without_a_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="there is no folder"), weft.profile(tmp_path / "missing" / "trace.json"):
        pytest.fail("the work ran")
    assert active_profile() is None
