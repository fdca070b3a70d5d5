"""Loops at the borders of what is compiled: constants, counts that say nothing, strings, and turns that are unlike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper
from xdsl.ir import Block

import weft.onnx
from weft.errors import PlaceError, UnsupportedError
from weft.frontends.onnx.import_nodes import Importer, StageFull
from weft.frontends.onnx.load import OnnxFunction
from weft.frontends.onnx.operators import compiled_loops
from weft.ir.types import i64
from weft.ops.graph import GraphBuilder
from weft.testing.onnx_models import BOOL, I64, info, model

N = helper.make_node
X = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
ZEROS, YES, MOST = np.zeros((2, 6), np.float32), np.array(True), np.array(np.iinfo(np.int64).max)


def body_of(*nodes: Any, stacks: bool = False, condition: bool = True) -> Any:
    """A body that carries `s` to `t`, and stacks `o`; its condition is passed on where nodes do not make one."""
    passed = [N("Identity", ["c"], ["c2"])] if condition else []
    inputs = [info("i", (), I64), info("c", (), BOOL), info("s", None)]
    outputs = [info("c2", (), BOOL), info("t", None), *([info("o", None)] if stacks else [])]
    return helper.make_graph([*nodes, *passed], "body", inputs, outputs)


def loaded(node: Any, inputs: list[Any], **arrays: Any) -> OnnxFunction:
    return weft.onnx.load(model([node], inputs, [info(name, None) for name in node.output], arrays))


def turns_of(function: OnnxFunction) -> int:
    """How many loops the first stage has."""
    state = next(iter(function._program._starts.values()))  # pyright: ignore[reportPrivateUsage]
    step = next(iter(state.steps.values()))
    return sum(type(each).__name__ == "LoopStep" for each in step.function.executor.executable.plan.steps)


@pytest.mark.parametrize("outer", ["x", "h"])
def test_a_loop_that_starts_from_constants_reads_what_is_outside(outer: str) -> None:
    node = N("Loop", ["m", "yes", "zeros"], ["last"], body=body_of(N("Add", ["s", outer], ["t"])))
    before = N("Mul", ["x", "x"], ["h"])
    arrays = {"m": np.array(12), "yes": YES, "zeros": ZEROS}
    found = weft.onnx.load(model([before, node], [info("x", (2, 6))], [info("last", None)], arrays))
    np.testing.assert_allclose(found(X)[0], 12 * (X if outer == "x" else X * X), rtol=1e-5)


def test_a_scan_of_constants_reads_what_is_outside() -> None:
    inputs, outputs = [info("s", (2, 6)), info("e", (2, 6))], [info("t"), info("o")]
    nodes = [N("Add", ["s", "x"], ["p"]), N("Add", ["p", "e"], ["t"]), N("Identity", ["t"], ["o"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    node = N("Scan", ["zeros", "wholes"], ["last", "y"], body=body, num_scan_inputs=1)
    wholes = np.ones((7, 2, 6), np.float32)
    last, stack = loaded(node, [info("x", (2, 6))], zeros=ZEROS, wholes=wholes)(X)
    np.testing.assert_allclose(last, 7 * (X + 1), rtol=1e-5)
    np.testing.assert_allclose(stack, np.arange(1, 8).reshape(7, 1, 1) * (X + 1), rtol=1e-5)


@pytest.mark.parametrize("turns", [8, 9])
def test_a_loop_of_constants_alone_is_checked(turns: int) -> None:
    table = np.arange(48, dtype=np.float32).reshape(8, 6)
    nodes = N("Gather", ["table", "i"], ["g"], axis=0), N("Add", ["s", "g"], ["t"])
    node = N("Loop", ["m", "yes", "zeros"], ["h"], body=body_of(*nodes))
    arrays = {"m": np.array(turns), "yes": YES, "zeros": ZEROS, "table": table}
    proto = model([node, N("Add", ["h", "x"], ["y"])], [info("x", (2, 6))], [info("y", None)], arrays)
    if turns == 8:
        np.testing.assert_allclose(weft.onnx.load(proto)(X)[0], X + table.sum(0), rtol=1e-5)
    else:
        with pytest.raises(PlaceError, match="out of range for dimension 0, of size 8"):
            weft.onnx.load(proto)(X)


@pytest.mark.parametrize("turns", [8, 50_000])
def test_a_loop_of_constants_is_folded_where_it_is_short(turns: int) -> None:
    node = N("Loop", ["m", "yes", "zeros"], ["h"], body=body_of(N("Add", ["s", "one"], ["t"])))
    arrays = {"m": np.array(turns), "yes": YES, "zeros": ZEROS, "one": np.float32(1)}
    found = weft.onnx.load(model([node, N("Add", ["h", "x"], ["y"])], [info("x", (2, 6))], [info("y", None)], arrays))
    np.testing.assert_allclose(found(X)[0], X + turns, rtol=1e-5)
    assert turns_of(found) == (turns > 8)


def doubling(limit: float, **more: Any) -> tuple[Any, dict[str, Any]]:
    nodes = [N("Add", ["s", "s"], ["t"]), N("ReduceSum", ["t"], ["r"], keepdims=0), N("Less", ["r", "limit"], ["c2"])]
    stacked = [N("Identity", ["r"], ["o"])] if more.get("stacks") else []
    return body_of(*nodes, *stacked, condition=False, **more), {"limit": np.float32(limit), "yes": YES}


@pytest.mark.parametrize("stacks", [False, True])
def test_a_count_that_says_nothing_leaves_the_end_to_the_condition(stacks: bool) -> None:
    body, arrays = doubling(1e3, stacks=stacks)
    node = N("Loop", ["m", "yes", "x"], ["last", "y"] if stacks else ["last"], body=body)
    results = loaded(node, [info("x", (2, 6))], m=MOST, **arrays)(np.ones((2, 6), np.float32))
    np.testing.assert_array_equal(results[0], np.full((2, 6), 128))
    if stacks:
        np.testing.assert_array_equal(results[1], 12 * 2.0 ** np.arange(1, 8))


@pytest.mark.parametrize("count", ["", "m"])
def test_a_loop_that_nothing_can_end_is_refused(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loops, "MOST_COMPILED_TURNS", 50)
    node = N("Loop", [count, "yes", "x"], ["last"], body=body_of(N("Neg", ["s"], ["t"])))
    with pytest.raises(UnsupportedError, match="turns"):
        loaded(node, [info("x", (2, 6))], yes=YES, m=MOST)(X)


@pytest.mark.parametrize("first", ["", "yes"])
def test_a_negative_count_is_no_turn(first: str) -> None:
    body, arrays = doubling(1e3)
    found = loaded(N("Loop", ["m", first, "x"], ["last"], body=body), [info("x", (2, 6))], m=np.array(-3), **arrays)
    np.testing.assert_array_equal(found(X)[0], X)


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal", "Bernoulli", "Multinomial"])
def test_every_turn_draws_its_own_numbers(op: str) -> None:
    draw = {
        "RandomUniform": N(op, [], ["o"], shape=[64]),
        "RandomNormal": N(op, [], ["o"], shape=[64]),
        "Bernoulli": N(op, ["half"], ["o"]),
        "Multinomial": N(op, ["logits"], ["o"], sample_size=64),
    }[op]
    arrays = {"m": np.array(6), "yes": YES, "half": np.full(64, 0.5, np.float32), "logits": np.ones((1, 9), np.float32)}
    node = N("Loop", ["m", "yes", "x"], ["last", "y"], body=body_of(draw, N("Identity", ["s"], ["t"]), stacks=True))
    stack = loaded(node, [info("x", (2, 6))], **arrays)(X)[1]
    assert len({each.tobytes() for each in stack}) == 6


def test_strings_are_carried_and_stacked() -> None:
    inputs = [info("i", (), I64), info("c", (), BOOL), info("s", (2,), TensorProto.STRING), info("n", (2,))]
    outputs = [info("c2", (), BOOL), info("t", (2,), TensorProto.STRING), info("k", (2,)), info("o", None)]
    nodes = [N("Identity", ["s"], ["t"]), N("Add", ["n", "n"], ["k"]), N("Identity", ["c"], ["c2"])]
    body = helper.make_graph([*nodes, N("Identity", ["s"], ["o"])], "body", inputs, outputs)
    node = N("Loop", ["m", "yes", "text", "n"], ["last", "sum", "y"], body=body)
    given = [info("text", (2,), TensorProto.STRING), info("n", (2,))]
    text = np.array(["a", "b"], object)
    last, sum_, stack = loaded(node, given, m=np.array(6), yes=YES)(text, np.ones(2, np.float32))
    assert list(last) == ["a", "b"] and stack.tolist() == [["a", "b"]] * 6
    np.testing.assert_array_equal(sum_, 64)


@pytest.mark.parametrize("known", [False, True])
def test_strings_are_scanned(known: bool) -> None:
    inputs = [info("s", (2,)), info("e", (2,), TensorProto.STRING)]
    nodes = [N("Add", ["s", "s"], ["t"]), N("Identity", ["e"], ["o"])]
    body = helper.make_graph(nodes, "body", inputs, [info("t", (2,)), info("o", (2,), TensorProto.STRING)])
    node = N("Scan", ["n", "text"], ["last", "y"], body=body, num_scan_inputs=1)
    text = np.array([[f"a{n}", f"b{n}"] for n in range(6)], object)
    given = [info("n", (2,)), *([] if known else [info("text", (6, 2), TensorProto.STRING)])]
    arrays = {"text": text} if known else {}
    last, stack = loaded(node, given, **arrays)(np.ones(2, np.float32), *([] if known else [text]))
    np.testing.assert_array_equal(last, 64)
    assert stack.tolist() == text.tolist()


def test_a_body_that_grows_large_ends_as_a_stage_does() -> None:
    importer = Importer({}, {}, str, {}, [], stage_ops=4)
    importer.check_room()
    importer.builder = GraphBuilder(Block())
    for _ in range(5):
        importer.builder.full(value=0, shape=(), dtype=i64)
    with pytest.raises(StageFull):
        importer.check_room()
