"""A group that has no kernel as a whole is refused with a reason, cut into its ops, and the reason is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.backends.reference.tile import run_kernel
from weft.errors import LoweringError
from weft.ir.types import Tensor, f32, tensor_of
from weft.lower.dispatch import lower, try_lower
from weft.lower.plan import Planned, build_plan
from weft.lower.refusal import Refusal
from weft.lower.steps import KernelStep
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, ReturnOp
from weft.ops.layouts import contiguous
from weft.passes.grouping.build_groups import emit_group
from weft.testing.kernels import group_of

X, W = Tensor(f32, (8, 16)), Tensor(f32, (16, 4))
Body = Callable[..., SSAValue | tuple[SSAValue, ...]]


def sum_after_dot(b: GraphBuilder, x: Any, w: Any) -> SSAValue:
    return b.sum(b.dot(x, w), dims=(1,), keep=False)


def two_anchors(b: GraphBuilder, x: Any, w: Any) -> SSAValue:
    return b.cumsum(b.dot(x, w), dim=1)


def two_shapes(b: GraphBuilder, x: Any, w: Any) -> tuple[SSAValue, SSAValue]:
    return b.exp(x), b.exp(w)


def sum_of_sums(b: GraphBuilder, x: Any, w: Any) -> SSAValue:
    rows = b.sum(x, dims=(1,), keep=True)
    return b.sum(b.exp(rows), dims=(0, 1), keep=False)


def sums_of_two_kinds(b: GraphBuilder, x: Any, w: Any) -> SSAValue:
    return b.add(b.sum(x, dims=(1,), keep=False), b.sum(x, dims=(0, 1), keep=False))


def after_a_sort(b: GraphBuilder, x: Any, w: Any) -> SSAValue:
    values, _ = b.sort(x, dim=1, descending=False, stable=True)
    return b.exp(values)


REFUSED: dict[Body, str] = {
    sum_after_dot: "graph.sum cannot follow a product in its kernel",
    two_anchors: "at most one can shape the kernel",
    two_shapes: "a group's outputs have one shape",
    sum_of_sums: "does not lie in the group's rows or columns",
    sums_of_two_kinds: "is not reduced over the group's columns",
    after_a_sort: "nothing can be computed after graph.sort in its kernel",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_a_reason_is_given_before_there_is_code(body: Body) -> None:
    group = group_of([X, W], body)
    layouts = [[contiguous(tensor_of(v.type)) for v in values] for values in (group.block.args, group.yielded)]
    answer = try_lower(group, "k", *layouts)
    assert isinstance(answer, Refusal) and REFUSED[body] in answer.reason
    with pytest.raises(LoweringError, match=REFUSED[body]):
        lower(group, "k", *layouts)


def function_of(body: Body) -> FuncOp:
    """A function whose ops are one group, whether or not grouping would have made it."""
    function = FuncOp.make("f", {"x": X, "w": W})
    made = body(GraphBuilder(function.block), *function.block.args)
    yielded = list(made) if isinstance(made, tuple) else [made]
    function.block.add_op(last := ReturnOp.make(yielded))
    values: dict[SSAValue, SSAValue] = {each: each for each in function.block.args}
    ops = [op for op in function.block.ops if op is not last]
    emit_group(function.block, ops, yielded, values, last)
    last.detach()
    function.block.add_op(ReturnOp.make([values[value] for value in yielded]))
    return function


def run_plan(planned: Planned, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What the kernels of a plan compute, by their meaning; all tensors are row-major."""
    plan = planned.plan
    memory = [np.zeros(each.tensor.shape, each.tensor.dtype.numpy).reshape(-1) for each in plan.buffers]  # type: ignore[arg-type]
    for number, array in zip(plan.inputs, arrays, strict=True):
        memory[number][:] = array.reshape(-1)
    for step in plan.steps:
        assert isinstance(step, KernelStep)
        run_kernel(planned.kernels[step.function], [memory[number] for number in step.buffers], [])
    return [memory[number].reshape(plan.buffers[number].tensor.shape) for number in plan.outputs]  # type: ignore[arg-type]


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_a_refused_group_is_cut_and_the_reason_reported(body: Body, caplog: pytest.LogCaptureFixture) -> None:
    x, w = (np.random.default_rng(n).standard_normal(t.shape).astype(np.float32) for n, t in enumerate((X, W)))
    plain = FuncOp.make("plain", {"x": X, "w": W})
    made = body(GraphBuilder(plain.block), *plain.block.args)
    plain.block.add_op(ReturnOp.make(list(made) if isinstance(made, tuple) else [made]))
    function = function_of(body)
    assert sum(isinstance(op, GroupOp) for op in function.block.ops) == 1
    with caplog.at_level(logging.WARNING, logger="weft"):
        planned = build_plan(function)
    assert REFUSED[body] in caplog.text
    said = [schedule for schedule in planned.schedules.values() if "cut from a group" in schedule]
    assert len(said) == len(planned.schedules) and all(REFUSED[body] in schedule for schedule in said)
    for found, expected in zip(run_plan(planned, [x, w]), run(plain, [x, w]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
