"""Matmuls that add to what is there: a chain of sums has one tensor in memory at a time, and the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.config import Config
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, bf16, f32
from weft.lower.plan import build_plan
from weft.lower.steps import DotStep, KernelStep, Plan
from weft.pipelines import cpu_passes
from weft.runtime.memory import plan_arena

M, N, K = 160, 192, 144
FACTORS = 3
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}


def factors(dtype: DType, count: int = FACTORS) -> dict[str, Tensor]:
    named = {}
    for each in range(count):
        named |= {f"x{each}": Tensor(dtype, (K, M)), f"y{each}": Tensor(dtype, (K, N))}
    return named


def product(b: Any, x: Any, y: Any) -> Any:
    return b.dot(b.permute(x, dims=(1, 0)), y)


def chain(b: Any, *values: Any) -> Any:
    total = product(b, *values[:2])
    for x, y in zip(values[2::2], values[3::2], strict=True):
        total = b.add(total, product(b, x, y))
    return total


def planned(passes: Any, arguments: dict[str, Tensor], body: Any, config: Config | None = None, **marks: Any) -> Plan:
    module = passes.built(arguments, body)
    passes.function(module).attributes.update({name: to_attribute(value) for name, value in marks.items()})
    return build_plan(passes.function(passes.apply(cpu_passes(config or Config()), module, rtol=2e-2))).plan


def test_a_chain_is_summed_in_the_memory_of_its_result(passes: Any) -> None:
    plan = planned(passes, factors(f32), chain)
    assert [type(step) for step in plan.steps] == [DotStep] * FACTORS
    assert [step.accumulates for step in plan.steps if isinstance(step, DotStep)] == [False, True, True]
    assert {step.out.buffer for step in plan.steps if isinstance(step, DotStep)} == set(plan.outputs)
    assert plan_arena(plan, {}).size == 0


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_kernels_of_our_own_add_to_it_as_well(passes: Any, dtype: DType) -> None:
    plan = planned(passes, factors(dtype), chain, Config(strict=True))
    assert [type(step) for step in plan.steps] == [KernelStep] * FACTORS
    assert all(plan.outputs[0] in step.buffers for step in plan.steps if isinstance(step, KernelStep))
    assert plan_arena(plan, {}).size == 0


def test_a_sum_that_goes_on_needs_one_tensor(passes: Any) -> None:
    plan = planned(passes, factors(f32), lambda b, *values: b.exp(chain(b, *values)))
    assert plan_arena(plan, {}).size == M * N * 4


def test_what_is_read_later_is_added_to_in_a_copy_of_it_or_by_a_kernel(passes: Any) -> None:
    def body(b: Any, x0: Any, y0: Any, x1: Any, y1: Any) -> Any:
        first = product(b, x0, y0)
        return b.add(first, product(b, x1, y1)), first

    plan = planned(passes, factors(f32, 2), body)
    assert not any(step.accumulates for step in plan.steps if isinstance(step, DotStep))


def test_a_gradient_that_is_replaced_is_added_to_where_it_lies(passes: Any) -> None:
    arguments = {"total": Tensor(f32, (M, N)), **factors(f32, 1)}

    def body(b: Any, total: Any, x: Any, y: Any) -> Any:
        return b.add(total, product(b, x, y))

    plan = planned(passes, arguments, body, replaced=((0, 0),))
    (step,) = plan.steps
    assert isinstance(step, DotStep) and step.accumulates and step.out.buffer == plan.inputs[0]
    kept = planned(passes, arguments, body)
    assert not any(isinstance(step, DotStep) and step.accumulates for step in kept.steps)


def test_what_a_kernel_could_compute_as_it_adds_is_not_written_for_it(passes: Any) -> None:
    def body(b: Any, total: Any, x: Any, y: Any) -> Any:
        return b.add(b.exp(total), product(b, x, y))

    plan = planned(passes, {"total": Tensor(f32, (M, N)), **factors(f32, 1)}, body)
    assert [type(step) for step in plan.steps] == [DotStep, KernelStep]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_values_are_those_of_the_sum(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = [torch.randn(*batch, 33, side, dtype=dtype) for _ in range(3) for side in (17, 21)]

    def total(*given: torch.Tensor) -> torch.Tensor:
        products = [x.mT @ y for x, y in zip(given[::2], given[1::2], strict=True)]
        return products[0] + products[1] + products[2]

    exact = total(*(value.double() for value in values))
    for options in ({}, {"strict": True}):
        torch._dynamo.reset()
        found = torch.compile(total, backend="weft", options=options)(*values)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=exact.abs().max().item() * TOLERANCES[dtype])


BUFFERS: dict[str, Any] = {
    "columns": lambda: torch.ones(N, M).t(),
    "every second": lambda: torch.ones(M, 2 * N)[:, ::2],
    "padded": lambda: torch.ones(M, 2 * N)[:, :N],
    "rows apart": lambda: torch.ones(2 * M, N)[::2],
}


@pytest.mark.parametrize("case", BUFFERS)
def test_what_is_added_to_may_lie_in_any_order(case: str) -> None:
    def add(total: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
        total += x @ y

    torch.manual_seed(0)
    found, exact, x, y = BUFFERS[case](), BUFFERS[case](), torch.randn(M, K), torch.randn(K, N)
    add(exact, x, y)
    torch._dynamo.reset()
    torch.compile(add, backend="weft", options={"fallback": "error"})(found, x, y)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-4)


def test_a_library_adds_only_to_rows(passes: Any) -> None:
    arguments = {"total": Tensor(f32, (M, N)), **factors(f32, 1)}

    def body(b: Any, total: Any, x: Any, y: Any) -> Any:
        return b.add(total, product(b, x, y))

    for strides, added in (((N + 8, 1), True), ((1, M), False), ((2 * N, 2), False), ((1, 1), False)):
        marks = {"arg_strides": (strides, None, None), "result_strides": (strides,)}
        plan = planned(passes, arguments, body, replaced=((0, 0),), **marks)
        assert any(isinstance(step, DotStep) and step.accumulates for step in plan.steps) is added


def test_a_sum_that_is_read_in_another_order_is_copied(passes: Any) -> None:
    batch, heads, rows, columns = 2, 4, 256, 64

    def body(b: Any, a0: Any, v0: Any, a1: Any, v1: Any, w: Any) -> Any:
        total = b.permute(b.add(b.dot(a0, v0), b.dot(a1, v1)), dims=(0, 2, 1, 3))
        return b.dot(b.reshape(total, shape=(batch * rows, heads * columns)), w)

    weights, values = (Tensor(f32, (batch, heads, rows, side)) for side in (rows, columns))
    arguments = {"a0": weights, "v0": values, "a1": weights, "v1": values, "w": Tensor(f32, (heads * columns, N))}
    plan = planned(passes, arguments, body)
    assert [type(step) for step in plan.steps] == [DotStep, DotStep, KernelStep, DotStep]
