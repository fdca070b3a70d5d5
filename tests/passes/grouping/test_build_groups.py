"""How results are written: each has memory of its own, also where one value is all of them."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.lower.plan import build_plan
from weft.lower.steps import CallStep
from weft.ops.dialect import parse_module
from weft.ops.graph import FuncOp
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.simplify.eliminate_common import EliminateCommon


def calling_twice(strides: str) -> ModuleOp:
    call = '"graph.opaque"(%x) {target = "aten::linalg_inv", arguments = "{}"} : (tensor<3x3xf32>) -> tensor<3x3xf32>'
    return parse_module(
        f"""
        "graph.func"() ({{
        ^bb0(%x: tensor<3x3xf32>):
          %0 = {call}
          %1 = {call}
          "graph.return"(%0, %1, %0) : (tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>) -> ()
        }}) {{sym_name = "f"{strides}}} : () -> ()
        """
    )


@pytest.mark.parametrize("strides", ["", ", result_strides = [none, [1 : i64, 3 : i64], [1 : i64, 3 : i64]]"])
def test_equal_calls_to_the_framework_are_one_and_their_results_are_not(strides: str) -> None:
    module = calling_twice(strides)
    for each in (EliminateCommon(), GroupIntoKernels()):
        each.apply(Context(), module)
        module.verify()
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    plan = build_plan(function).plan
    assert sum(isinstance(step, CallStep) for step in plan.steps) == 1
    assert len(set(plan.outputs)) == 3
    assert sorted(plan.buffers[number].role for number in plan.outputs) == ["external", "output", "output"]
