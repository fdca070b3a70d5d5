"""Captured calls for real: results, fresh memory, the user's memory, random numbers, and what cannot be captured."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch

from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.steps import Plan
from weft.runtime.cuda import cuda_graphs

from .handwritten import CODE, SIZE, call, chain, in_place, kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture whatever can be captured."""
    monkeypatch.setattr(cuda_graphs, "_REPLAY_US", -1e9)


def executor(plan: Plan) -> CudaExecutor:
    return CudaExecutor(load_program(plan, CODE), OpaqueRuntime({}))


def captures(run: CudaExecutor) -> int:
    assert run.graphs is not None
    return sum(stream.captures for stream in run.graphs.streams.values())


def mixed() -> Plan:
    return chain(
        kernel("scale", 0, 2),
        call("aten::sin", [2], [4]),
        kernel("scale", 4, 3),
        call("aten::exp", [3], [5]),
        kernel("scale", 5, 1),
    )


def test_kernels_and_calls_are_captured_together() -> None:
    run = executor(mixed())
    results = []
    for _ in range(6):
        x = torch.randn(SIZE, device="cuda")
        results.append((run([x], {})[0], (2 * (2 * x).sin()).exp() * 2))
    for found, expected in results:  # at the end: no replay may have changed an earlier result
        torch.testing.assert_close(found, expected)
    assert captures(run) in (1, 2) and run.graphs is not None and run.graphs.refusal is None
    assert len({found.data_ptr() for found, _ in results}) == len(results)


def test_an_input_that_stays_is_read_where_it_lies() -> None:
    run = executor(mixed())
    x = torch.nn.Parameter(torch.randn(SIZE, device="cuda"), requires_grad=False)
    for _ in range(4):
        x.data.normal_()
        torch.testing.assert_close(run([x], {})[0], (2 * (2 * x.data).sin()).exp() * 2)
    assert captures(run) == 1
    (stream,) = run.graphs.streams.values()  # type: ignore[union-attr]
    assert stream.captured is not None and not stream.captured.moving


def test_the_users_memory_is_written_over() -> None:
    run = executor(in_place(kernel("scale", 0, 0), call("aten::sin", [0], [4]), kernel("scale", 4, 1)))
    x = torch.randn(SIZE, device="cuda")
    for _ in range(4):
        expected = x * 2
        new, y = run([x], {})
        assert new is x and torch.equal(x, expected)
        torch.testing.assert_close(y, expected.sin() * 2)
    keep = []
    for _ in range(3):
        keep.append(x := torch.randn(SIZE, device="cuda"))
        expected = x * 2
        new, y = run([x], {})
        assert new is x and torch.equal(x, expected)
    assert captures(run) == 2


def test_random_numbers_are_those_of_eager() -> None:
    arguments = '{"args":["#0"],"kwargs":{},"results":[0]}'
    run = executor(chain(call("aten::rand_like", [0], [4], arguments), kernel("scale", 4, 1)))
    x = torch.zeros(SIZE, device="cuda")
    torch.manual_seed(7)
    found = [run([x], {})[0] for _ in range(4)]
    torch.manual_seed(7)
    expected = [torch.rand_like(x) * 2 for _ in range(4)]
    assert captures(run) == 1
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_graphs_share_memory_and_do_not_disturb_each_other() -> None:
    first, second = executor(mixed()), executor(mixed())
    results = []
    for number in range(12):
        x = torch.randn(SIZE, device="cuda")
        results.append(((first if number % 3 else second)([x], {})[0], (2 * (2 * x).sin()).exp() * 2))
    for found, expected in results:
        torch.testing.assert_close(found, expected)


def test_streams_have_graphs_of_their_own() -> None:
    run = executor(mixed())
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for number in range(12):
        side = sides[number % 2]
        with torch.cuda.stream(side):
            x = torch.randn(SIZE, device="cuda")
            results.append((run([x], {})[0], (2 * (2 * x).sin()).exp() * 2))
    torch.cuda.synchronize()
    for found, expected in results:
        torch.testing.assert_close(found, expected)


def test_a_user_may_capture_the_call() -> None:
    run = executor(mixed())
    x = torch.randn(SIZE, device="cuda")
    run([x], {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run([x], {})
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, (2 * (2 * x).sin()).exp() * 2)


def test_after_a_capture_that_failed_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "why_not_captured", lambda plan, why_not_called: None)
    waits = executor(chain(call("aten::nonzero", [0], [4]), kernel("scale", 0, 1)))
    monkeypatch.setattr(CudaExecutor, "_fitting", lambda self, tensor, strides: tensor)
    x = torch.rand(SIZE, device="cuda") + 1
    for _ in range(3):
        assert torch.equal(waits([x], {})[0], x * 2)
    assert waits.graphs is not None and waits.graphs.refusal
    torch.rand(4, device="cuda")
    again = executor(mixed())
    for _ in range(4):
        x = torch.randn(SIZE, device="cuda")
        torch.testing.assert_close(again([x], {})[0], (2 * (2 * x).sin()).exp() * 2)
    assert captures(again) >= 1 and again.graphs is not None and again.graphs.refusal is None


def test_a_replay_is_quicker_than_calls() -> None:
    steps = [call("aten::sin", [0], [4])] + [call("aten::sin", [4], [4]) for _ in range(50)] + [kernel("scale", 4, 1)]
    x = torch.randn(SIZE, device="cuda")
    graphed = executor(chain(*steps))
    plain = CudaExecutor(graphed.executable, OpaqueRuntime({}), cuda_graphs=False)
    times: dict[str, list[float]] = {"graphed": [], "plain": []}
    for _ in range(20):
        for name, run in (("graphed", graphed), ("plain", plain)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run([x], {})
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    graphed_us, plain_us = (median(times[name][3:]) * 1e6 for name in ("graphed", "plain"))
    print(f"51 calls and a kernel: {graphed_us:.0f} µs as a graph, {plain_us:.0f} without, {plain_us / 51:.1f} a call")
    assert graphed_us < plain_us
