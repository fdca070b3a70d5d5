"""Results that are copied out of what calls give: when all is there at once, a step takes twice its results."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context

from weft.config import Config
from weft.ir.types import Tensor, f32
from weft.lower.plan import build_plan
from weft.lower.steps import CallStep, Plan
from weft.ops.graph import OpaqueOp
from weft.pipelines import nvidia_passes
from weft.runtime.memory import cut_finely, peak_of, plan_phases

CALLS = 6


def planned(passes: Any, size: int, *, read_last: bool = False) -> Plan:
    """A function that returns what calls give, transposed; the first of them is read by the last."""
    x = Tensor(f32, (size, size))

    def body(b: Any, given: Any) -> Any:
        made: list[Any] = []
        for number in range(CALLS):
            read = [given, made[0]] if made and read_last and number == CALLS - 1 else [given]
            made.append(b.insert(OpaqueOp.make("demo::f", read, f'{{"number": {number}}}', [x])).results[0])
        return [b.permute(value, dims=(1, 0)) for value in made]

    module = passes.built({"x": x}, body)
    for each in nvidia_passes(Config()):
        each.apply(Context(), module)
    return build_plan(passes.function(module)).plan


def peak(plan: Plan) -> int:
    parts = cut_finely([plan.steps], 1)
    return peak_of(plan, {}, parts, plan_phases(plan, {}, parts)).phased


@pytest.mark.parametrize("read_last", [False, True])
def test_what_was_copied_is_given_back_before_the_next_call(passes: Any, read_last: bool) -> None:
    plan = planned(passes, 1024, read_last=read_last)
    one = 4 * 1024 * 1024
    assert peak(plan) <= (1 + CALLS + 1 + 2 * read_last) * one, "the argument, the results, and what one is copied from"


def test_small_copies_stay_side_by_side(passes: Any) -> None:
    kinds = [isinstance(step, CallStep) for step in planned(passes, 8).steps]
    assert kinds[:CALLS] == [True] * CALLS
