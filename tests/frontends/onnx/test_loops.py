"""Loops whose turns are alike are compiled as loops; what they compute is the same either way.

What is wrong with data is told either way. Where several checks find something, in whatever turns, a compiled loop
tells of the last of them in the body, not of the first in time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import helper

import weft.onnx
from weft.errors import DataError, PlaceError
from weft.frontends.onnx.load import OnnxFunction
from weft.frontends.onnx.operators import compiled_loops
from weft.testing.onnx_models import BOOL, F32, I64, info, model

X = np.random.default_rng(0).standard_normal((9, 2, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32) * np.float32(0.3)
N = helper.make_node
S = ("s", (2, 6))


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def loop_body(*nodes: Any, stacks: bool = False, condition: bool = True) -> Any:
    """A body that carries `s` to `t`, and stacks `o`; its condition is passed on where nodes do not make one."""
    passed = [N("Identity", ["c"], ["c2"])] if condition else []
    outputs = [info("c2", (), BOOL), info("t", (2, 6)), *([info("o")] if stacks else [])]
    return graph([*nodes, *passed], [info("i", (), I64), info("c", (), BOOL), info(*S)], outputs)


def loaded(node: Any, inputs: list[Any], **arrays: Any) -> OnnxFunction:
    return weft.onnx.load(model([node], inputs, [info(name, None) for name in node.output], arrays))


def turns_of(function: OnnxFunction) -> int:
    """How many loops the first stage has."""
    state = next(iter(function._program._starts.values()))  # pyright: ignore[reportPrivateUsage]
    step = next(iter(state.steps.values()))
    steps = step.function.executor.executable.plan.steps
    return sum(type(each).__name__ == "LoopStep" for each in steps)


CELL = [N("MatMul", ["s", "w"], ["h"]), N("Add", ["h", "e"], ["a"]), N("Tanh", ["a"], ["t"])]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backward", [0, 1])
def test_a_scan_is_a_loop(axis: int, backward: int) -> None:
    body = graph([*CELL, N("Identity", ["t"], ["o"])], [info(*S), info("e", (2, 6))], [info("t"), info("o")])
    ways: Any = {"scan_input_axes": [axis], "scan_output_axes": [axis], "scan_input_directions": [backward]}
    ways["scan_output_directions"] = [backward]
    node = N("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1, **ways)
    x = np.ascontiguousarray(np.moveaxis(X, 0, axis))
    found = loaded(node, [info("x", x.shape)], z=np.zeros((2, 6), np.float32), w=W)
    last, stacked = found(x)
    assert turns_of(found) == 1
    state, expected = np.zeros((2, 6), np.float32), []
    for each in X[::-1] if backward else X:
        state = np.tanh(state @ W + each)
        expected.append(state)
    np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-5)
    stack = np.stack(expected[::-1] if backward else expected, axis)
    np.testing.assert_allclose(stacked, stack, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [["m", "yes"], ["m", ""]])
def test_a_loop_of_a_known_length_is_one(given: list[str]) -> None:
    nodes = [N("Cast", ["i"], ["e"], to=F32), *CELL, N("ReduceMax", ["t"], ["o"], keepdims=0)]
    node = N("Loop", [*given, "x"], ["last", "y"], body=loop_body(*nodes, stacks=True))
    found = loaded(node, [info("x", (2, 6))], m=np.array(12), yes=np.array(True), w=W)
    last, stacked = found(X[0])
    assert turns_of(found) == 1
    state, expected = X[0], []
    for turn in range(12):
        state = np.tanh(state @ W + turn)
        expected.append(state.max())
    np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(stacked, np.array(expected), rtol=1e-4, atol=1e-5)


def growing(limit: float) -> Any:
    nodes = [N("Add", ["s", "s"], ["t"]), N("ReduceSum", ["t"], ["r"], keepdims=0), N("Less", ["r", "limit"], ["c2"])]
    return loop_body(*nodes, condition=False), {"limit": np.float32(limit), "yes": np.array(True)}


@pytest.mark.parametrize("most", [None, 7])
def test_a_condition_of_data_ends_a_loop(most: int | None) -> None:
    body, arrays = growing(1e5)
    found = loaded(
        N("Loop", ["" if most is None else "m", "yes", "x"], ["last"], body=body),
        [info("x", (2, 6))],
        **arrays,
        **({} if most is None else {"m": np.array(most)}),
    )
    (last,) = found(np.abs(X[0]))
    assert turns_of(found) == 1
    state, turns = np.abs(X[0]), 0
    while turns == 0 or (state.sum() < 1e5 and turns != most):
        state, turns = state + state, turns + 1
    np.testing.assert_allclose(last, state, rtol=1e-5)


@pytest.mark.parametrize("count", [-3, 0, 1, 7])
def test_data_say_how_many_turns_there_are(count: int) -> None:
    node = N("Loop", ["m", "yes", "x"], ["last"], body=loop_body(N("Add", ["s", "s"], ["t"])))
    found = loaded(node, [info("x", (2, 6)), info("m", (), I64)], yes=np.array(True))
    (last,) = found(X[0], np.array(count))
    assert turns_of(found) == 1
    np.testing.assert_allclose(last, X[0] * 2.0 ** max(count, 0), rtol=1e-6)


@pytest.mark.parametrize("first", [False, True])
def test_data_say_whether_there_is_a_first_turn(first: bool) -> None:
    node = N("Loop", ["m", "first", "x"], ["last"], body=loop_body(N("Add", ["s", "s"], ["t"])))
    found = loaded(node, [info("x", (2, 6)), info("first", (), BOOL)], m=np.array(6))
    np.testing.assert_allclose(found(X[0], np.array(first))[0], X[0] * (64 if first else 1), rtol=1e-6)


def test_branches_inside_of_a_loop_are_compiled() -> None:
    then = graph([N("Add", ["s", "s"], ["p"])], [], [info("p", (2, 6))])
    otherwise = graph([N("Mul", ["s", "small"], ["q"])], [], [info("q", (2, 6))])
    nodes = [
        N("ReduceSum", ["s"], ["r"], keepdims=0),
        N("Less", ["r", "limit"], ["k"]),
        N("If", ["k"], ["t"], then_branch=then, else_branch=otherwise),
        N("ReduceMax", ["t"], ["o"], keepdims=0),
    ]
    node = N("Loop", ["m", "yes", "x"], ["last", "y"], body=loop_body(*nodes, stacks=True))
    arrays = {"m": np.array(20), "yes": np.array(True), "limit": np.float32(30), "small": np.float32(0.3)}
    found = loaded(node, [info("x", (2, 6))], **arrays)
    last, stacked = found(np.abs(X[0]))
    assert turns_of(found) == 1
    state, expected = np.abs(X[0]), []
    for _ in range(20):
        state = state + state if state.sum() < 30 else state * np.float32(0.3)
        expected.append(state.max())
    np.testing.assert_allclose(last, state, rtol=1e-4)
    np.testing.assert_allclose(stacked, np.array(expected), rtol=1e-4)


def test_an_index_out_of_range_in_a_turn_is_told() -> None:
    body = loop_body(N("Gather", ["table", "i"], ["g"], axis=0), N("Add", ["s", "g"], ["t"]))
    table = X[:4].reshape(8, 6)
    for turns in (8, 9):
        node = N("Loop", ["m", "yes", "x"], ["last"], body=body)
        found = loaded(node, [info("x", (2, 6)), info("table", (8, 6))], m=np.array(turns), yes=np.array(True))
        if turns == 8:
            np.testing.assert_allclose(found(X[0], table)[0], X[0] + table.sum(0), rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(PlaceError, match="out of range for dimension 0, of size 8"):
                found(X[0], table)
        assert turns_of(found) == 1


def test_a_shape_that_grows_is_unrolled() -> None:
    body = graph(
        [N("Concat", ["s", "row"], ["t"], axis=0), N("Identity", ["c"], ["c2"])],
        [info("i", (), I64), info("c", (), BOOL), info("s")],
        [info("c2", (), BOOL), info("t")],
    )
    arrays = {"m": np.array(6), "yes": np.array(True), "row": W[:1]}
    found = loaded(N("Loop", ["m", "yes", "x"], ["last"], body=body), [info("x", (2, 6))], **arrays)
    np.testing.assert_array_equal(found(X[0])[0], np.concatenate([X[0], np.repeat(W[:1], 6, 0)]))
    assert turns_of(found) == 0


def test_a_loop_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loops, "MOST_COMPILED_TURNS", 50)
    body, arrays = growing(np.inf)
    found = loaded(N("Loop", ["", "yes", "x"], ["last"], body=body), [info("x", (2, 6))], **arrays)
    with pytest.raises(DataError, match="the loop takes over 50 turns"):
        found(np.abs(X[0]))


def test_what_a_node_is_called_says_nothing_of_its_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loops, "MOST_COMPILED_TURNS", 50)
    body, arrays = growing(np.inf)
    node = N("Loop", ["", "yes", "x"], ["last"], name="an index is out of range", body=body)
    for _ in range(2):  # imported, and as it was stored
        with pytest.raises(DataError, match="the loop takes over 50 turns"):
            loaded(node, [info("x", (2, 6))], **arrays)(np.abs(X[0]))


def counting_body() -> Any:
    """As exporters of `while` write it: `j` counts up to `n`, the weights are handed on as they are."""
    nodes = [
        N("Gather", ["x", "j"], ["e"], axis=0),
        N("MatMul", ["s", "v"], ["h"]),
        N("Add", ["h", "e"], ["a"]),
        N("Tanh", ["a"], ["t"]),
        N("Identity", ["t"], ["o"]),
        N("Add", ["j", "one"], ["k"]),
        N("Cast", ["k"], ["here"], to=F32),
        N("Cast", ["n"], ["end"], to=F32),
        N("Less", ["here", "end"], ["c2"]),
    ]
    inputs = [
        info("i", (), I64),
        info("c", (), BOOL),
        info("j", (), I64),
        info(*S),
        info("n", (), I64),
        info("v", (6, 6)),
    ]
    outputs = [info("c2", (), BOOL), info("k", (), I64), info("t", (2, 6)), info("n", (), I64), info("v", (6, 6))]
    return graph(nodes, inputs, [*outputs, info("o", (2, 6))])


def stepped(x: np.ndarray, turns: int) -> np.ndarray:
    state, made = np.zeros((2, 6)), []
    for each in x[:turns]:
        state = np.tanh(state @ W.astype(np.float64) + each)
        made.append(state)
    return np.stack(made)


COUNTED = {"zero": np.array(0), "one": np.array(1), "yes": np.array(True), "w": W, "z": np.zeros((2, 6), np.float32)}


@pytest.mark.parametrize("most", ["", "m"])
def test_a_loop_that_counts_up_to_a_known_number_is_one(most: str) -> None:
    node = N("Loop", [most, "yes", "zero", "z", "n", "w"], ["at", "last", "end", "kept", "y"], body=counting_body())
    arrays = COUNTED | {"n": np.array(8)} | ({"m": np.array(6)} if most else {})
    found = loaded(node, [info("x", X.shape)], **arrays)
    at, last, end, kept, stacked = found(X)
    assert turns_of(found) == 1
    expected = stepped(X, 6 if most else 8)
    np.testing.assert_allclose(stacked, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, expected[-1], rtol=1e-4, atol=1e-5)
    assert (int(at), int(end)) == (len(expected), 8)
    np.testing.assert_array_equal(kept, W)


def test_a_loop_that_counts_up_to_a_size_takes_as_many_turns_as_each_shape_has() -> None:
    nodes = [
        N("Shape", ["x"], ["sizes"]),
        N("Gather", ["sizes", "zero"], ["n"], axis=0),
        N("Loop", ["", "yes", "zero", "z", "n", "w"], ["at", "last", "end", "kept", "y"], body=counting_body()),
    ]
    found = weft.onnx.load(model(nodes, [info("x", ("t", 2, 6))], [info("y", None)], COUNTED))
    for turns in (7, 9, 6, 8, 5):
        (stacked,) = found(X[:turns])
        np.testing.assert_allclose(stacked, stepped(X, turns), rtol=1e-4, atol=1e-5)


def test_a_loop_that_counts_up_to_what_data_say_is_right() -> None:
    node = N("Loop", ["", "yes", "zero", "z", "n", "w"], ["at", "last", "end", "kept", "y"], body=counting_body())
    found = loaded(node, [info("x", X.shape), info("n", (), I64)], **COUNTED)
    for turns in (7, 3):
        stacked = found(X, np.array(turns))[-1]
        np.testing.assert_allclose(stacked, stepped(X, turns), rtol=1e-4, atol=1e-5)
