"""Loops whose turns are counted at import: the condition means what its opset says, and a trip count ends the count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import helper

import weft.onnx
from weft.frontends.onnx.load import OnnxFunction
from weft.testing.onnx_models import BOOL, I64, info, model

N = helper.make_node


def turns_of(function: OnnxFunction) -> int:
    """How many loops the first stage has."""
    state = next(iter(function._program._starts.values()))  # pyright: ignore[reportPrivateUsage]
    step = next(iter(state.steps.values()))
    return sum(type(each).__name__ == "LoopStep" for each in step.function.executor.executable.plan.steps)


def counting_body(*condition: Any) -> Any:
    """A body that counts `j` up to `k` and stacks sums; nodes make the condition `c2` of `k`."""
    nodes = [N("Add", ["j", "one"], ["k"]), *condition, N("Add", ["s", "k"], ["t"]), N("Identity", ["t"], ["o"])]
    inputs = [info("i", (), I64), info("c", (), BOOL), info("j", ()), info("s", (2,))]
    outputs = [info("c2", (), BOOL), info("k", ()), info("t", (2,)), info("o", (2,))]
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize("opset", [10, 21])
def test_the_condition_of_a_loop_in_a_function_has_the_opset_of_the_function(opset: int) -> None:
    """`Clip` has its bound as an attribute in opset 10, and as an input in opset 21: there it would not clip."""
    body = counting_body(N("Clip", ["k"], ["q"], max=3.0), N("Less", ["q", "five"], ["c2"]))
    names, results = ["m", "yes", "zero", "one", "five", "x"], ["at", "last", "y"]
    loop = N("Loop", ["m", "yes", "zero", "x"], results, body=body)
    function = helper.make_function("own", "Counts", names, results, [loop], [helper.make_opsetid("", 10)])
    arrays = {"m": np.array(20), "yes": np.array(True)}
    arrays |= {name: np.array(value, np.float32) for name, value in (("zero", 0), ("one", 1), ("five", 5))}
    found = weft.onnx.load(
        model(
            [N("Counts", names, results, domain="own")],
            [info("x", (2,))],
            [info(name, None) for name in results],
            arrays,
            opset=opset,
            opsets=[helper.make_opsetid("own", 1)],
            functions=[function],
        )
    )
    at, last, stacked = found(np.zeros(2, np.float32))
    assert float(at) == 20 and stacked.shape == (20, 2)
    np.testing.assert_array_equal(last, [210, 210])


@pytest.mark.parametrize(("most", "limit", "turns"), [(6, 1e9, 6), (6, 5, 5), (6, 6, 6), (6, 7, 6)])
def test_a_trip_count_ends_a_loop_whose_condition_still_holds(most: int, limit: float, turns: int) -> None:
    node = N("Loop", ["m", "yes", "zero", "x"], ["at", "last", "y"], body=counting_body(N("Less", ["k", "n"], ["c2"])))
    arrays = {"m": np.array(most), "yes": np.array(True), "zero": np.float32(0), "one": np.float32(1)}
    outputs = [info(name, None) for name in node.output]
    found = weft.onnx.load(model([node], [info("x", (2,))], outputs, arrays | {"n": np.float32(limit)}))
    at, last, stacked = found(np.zeros(2, np.float32))
    assert turns_of(found) == 1
    assert float(at) == turns and stacked.shape == (turns, 2)
    np.testing.assert_array_equal(last, [turns * (turns + 1) / 2] * 2)
