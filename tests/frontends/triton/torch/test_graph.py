"""Kernels of the user's in graphs of torch: taken in as tile kernels, in strict mode too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import DeviceAssertError
from weft.lower.steps import CallStep, KernelStep, LaunchStep
from weft.runtime.record import CompilationRecord, recording


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def scale(x, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def count_up(total, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(total, tl.sum(values, axis=0))


@triton.jit
def copy_rows(x, out, row, column, N: tl.constexpr):
    places = tl.program_id(0) * row + tl.arange(0, N) * column
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), tl.load(x + places))


def add_into(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    size = x.numel()
    add[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, y, out, size, BLOCK=128)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", fullgraph=True, options={"strict": True, "cache": False} | options)


def steps_of(records: list[CompilationRecord]) -> list[type]:
    (record,) = records
    assert record.plan is not None and not record.fallbacks
    return [type(step) for step in record.plan.steps]


def test_a_kernel_is_a_step_of_the_plan_between_others() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_into(x * 2, y, out)
        return torch.relu(out) + 1

    x, y = torch.randn(300), torch.randn(300)
    with recording(programs=True) as records:
        torch.testing.assert_close(compiled(function)(x, y), torch.relu(x * 2 + y) + 1)
    assert steps_of(records) == [KernelStep, LaunchStep, KernelStep]
    assert any(kernel.label == "add" and kernel.schedule == "written" for kernel in records[0].kernels)
    assert "tile.kernel" in records[0].programs["tile"] and "graph.launch" in records[0].programs["graph"]


def test_what_a_kernel_fills_is_the_result_itself() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_into(x, y, out)
        return out

    with recording() as records:
        run = compiled(function)
        x, y = torch.randn(1000), torch.randn(1000)
        first = run(x, y)
        second = run(y, x * 2)
    assert steps_of(records) == [LaunchStep]
    assert torch.equal(first, x + y) and torch.equal(second, y + x * 2)


def test_sizes_may_be_symbols() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_into(x, y, out)
        return out * 2

    torch._dynamo.reset()
    run = torch.compile(
        function, backend="weft", fullgraph=True, dynamic=True, options={"strict": True, "cache": False}
    )
    with recording() as records:
        for size in (300, 77, 1024):
            x, y = torch.randn(size), torch.randn(size)
            torch.testing.assert_close(run(x, y), (x + y) * 2)
    assert steps_of(records) == [LaunchStep, KernelStep]


def test_an_argument_is_changed_in_place() -> None:
    def function(x: torch.Tensor) -> None:
        scale[(3,)](x, 3.0, x.numel(), BLOCK=128)

    x = torch.randn(300)
    expected = x * 3
    with recording() as records:
        compiled(function)(x)
    torch.testing.assert_close(x, expected)
    assert steps_of(records) == [LaunchStep]


def test_an_argument_that_is_read_afterwards_is_copied_first() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        before = x + 1
        scale[(3,)](x, 3.0, x.numel(), BLOCK=128)
        return before * x

    x = torch.randn(300)
    expected = (x + 1) * (x * 3), x * 3
    torch.testing.assert_close((compiled(function)(x), x), expected)


def test_a_temporary_that_is_needed_again_is_not_written_over() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        z = y.clone()
        scale[(3,)](z, 3.0, x.numel(), BLOCK=128)
        return z, y.sum()

    x = torch.randn(300)
    z, total = compiled(function)(x)
    torch.testing.assert_close(z, (x + 1) * 3)
    torch.testing.assert_close(total, (x + 1).sum())


def test_one_tensor_that_two_kernels_change_stays_in_its_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        scale[(3,)](y, 3.0, x.numel(), BLOCK=128)
        scale[(3,)](y, 2.0, x.numel(), BLOCK=128)
        return y

    x = torch.randn(300)
    with recording() as records:
        torch.testing.assert_close(compiled(function)(x), (x + 1) * 6)
    assert steps_of(records) == [KernelStep, LaunchStep, LaunchStep]


def test_a_kernel_starts_from_zeros() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = torch.zeros(1), torch.zeros(1)
        count_up[(3,)](first, x, 300, BLOCK=128)
        count_up[(3,)](second, x * 2, 300, BLOCK=128)
        return first, second

    x = torch.rand(300)
    run = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(run(x), (x.sum()[None], 2 * x.sum()[None]))


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[4:9],
        lambda x: x.t()[:5],
        lambda x: (x * 2).t()[2:7],
        lambda x: x[1:6, ::2],
        lambda x: x[:1].expand(5, 12),
    ],
)
def test_views_are_read_where_they_lie(look: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = look(x)
        out = torch.empty(y.shape)
        copy_rows[(y.shape[0],)](y, out, y.stride(0), y.stride(1), N=y.shape[1])
        return out + 1

    x = torch.randn(12, 12)
    assert torch.equal(compiled(function)(x), look(x) + 1)


def test_tensors_that_overlap_are_left_to_the_operator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        add[(1,)](y, y[4:20], y, 16, BLOCK=16)
        return y

    x = torch.randn(40)
    torch._dynamo.reset()
    run = torch.compile(function, backend="weft", fullgraph=True, options={"cache": False})
    with recording() as records:
        result = run(x)
    assert records[0].plan is not None and any(isinstance(step, CallStep) for step in records[0].plan.steps)
    expected = x + 1
    expected[:16] = expected[:16] + (x + 1)[4:20]
    torch.testing.assert_close(result, expected)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"]), "EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def with_heuristics(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n)
    tl.store(out + offsets, values if EVEN else -values, mask=offsets < n)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("backend", ["weft", "aot_eager"])
def test_heuristics_are_followed(size: int, backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        with_heuristics[(1,)](x, out, x.numel())
        return out

    torch._dynamo.reset()
    x = torch.randn(size)
    assert torch.equal(torch.compile(function, backend=backend, fullgraph=True)(x), x if size == 6 else -x)


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) + 1, mask=offsets < n)


@pytest.mark.parametrize("backend", ["weft", "aot_eager"])
def test_a_config_is_chosen_when_the_graph_is_compiled(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        size = x.numel()
        tuned[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, out, size)
        return out

    torch._dynamo.reset()
    tuned.cache.clear()
    x = torch.randn(1000)
    run = torch.compile(function, backend=backend, fullgraph=True)
    with recording() as records:
        assert torch.equal(run(x), x + 1)
    assert list(tuned.cache) == [(1000, "torch.float32", "torch.float32")]
    if backend == "weft":
        assert steps_of(records) == [LaunchStep]


@triton.jit
def asserting(x, out, n: tl.constexpr):
    values = tl.load(x + tl.arange(0, n))
    tl.device_assert(values > 0, "positive")
    tl.store(out + tl.arange(0, n), values)


def test_an_assertion_of_a_kernel_holds_or_raises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        asserting[(1,)](x, out, 8, debug=True)
        return out

    run = compiled(function)
    x = torch.rand(8) + 1
    assert torch.equal(run(x), x)
    with pytest.raises(DeviceAssertError, match="positive"):
        run(-x)
    assert torch.equal(run(x), x)


def test_a_graph_with_a_kernel_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    from weft.runtime import stored_programs

    stored_programs.disk_cache.cache_clear()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_into(x[3:], y[3:], out[3:])
        return out[3:] * 2.5

    x, y = torch.randn(300), torch.randn(300)
    sources: list[str] = []
    for _ in range(2):
        with recording() as records:
            run = compiled(function, cache=True, strict=False)
            torch.testing.assert_close(run(x, y), (x + y)[3:] * 2.5)
        sources += [record.source for record in records]
    stored_programs.disk_cache.cache_clear()
    assert sources == ["compiled", "cache"]


def test_the_reference_runs_a_launch() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_into(x.t(), y, out)
        return out * 2

    x, y = torch.randn(12, 12), torch.randn(144)
    result = compiled(function, target="reference")(x, y)
    torch.testing.assert_close(result, ((x.reshape(-1) + y).reshape(12, 12)) * 2)


@pytest.mark.parametrize("device", ["CPU", "CUDA"])
def test_what_is_left_to_the_operator_runs_on_each_device(device: str) -> None:
    """A graph of a GPU leaves launches to it, which have the options that they were given."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key("weft::triton_launch", device)
