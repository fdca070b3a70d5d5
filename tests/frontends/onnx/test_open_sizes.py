"""Models with open sizes: one program serves all sizes at which the import says the same, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import weft.onnx
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.onnx import stage_functions
from weft.frontends.onnx.load import OnnxFunction
from weft.frontends.onnx.outlines import Outline

CONFIG = Config.from_options({"cache": False})


def model_of(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], arrays: dict[str, Any]) -> Any:
    given = [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()]
    results = [helper.make_tensor_value_info(name, T.FLOAT, None) for name in outputs]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "model", given, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(function: OnnxFunction) -> int:
    """How many functions were made for a model."""
    return function._program._functions.compiled  # type: ignore[attr-defined]


def agrees(function: OnnxFunction, model: Any, **arrays: np.ndarray) -> None:
    wanted: Any = onnx.reference.ReferenceEvaluator(model).run(None, arrays)
    for found, each in zip(function(**arrays), wanted, strict=True):
        assert found.shape == each.shape
        np.testing.assert_allclose(found, each, atol=2e-6)


def attention() -> Any:
    """Tokens of a batch, compared with each other in heads whose shape is computed, and averaged."""
    node, rng = helper.make_node, np.random.default_rng(0)
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("MatMul", ["e", "w"], ["q"]),
        node("Shape", ["q"], ["shape"]),
        node("Slice", ["shape", "zero", "two"], ["leading"]),
        node("Concat", ["leading", "heads"], ["split"], axis=0),
        node("Reshape", ["q", "split"], ["h"]),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["t", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "t"], ["o"]),
        node("Transpose", ["o"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "shape"], ["y"]),
        node("ReduceMean", ["y"], ["mean"], axes=[1], keepdims=0),
    ]
    arrays = {"table": rng.normal(0, 1, (50, 16)).astype("f"), "w": rng.normal(0, 0.2, (16, 16)).astype("f")}
    arrays |= {"zero": np.array([0]), "two": np.array([2]), "heads": np.array([4, 4])}
    return model_of(nodes, {"ids": (T.INT64, ["batch", "length"])}, ["y", "mean"], arrays)


def test_a_third_size_is_not_compiled() -> None:
    model = attention()
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    rng = np.random.default_rng(1)
    for shape in ((2, 5), (3, 9), (4, 11), (2, 6), (5, 5), (7, 3)):
        agrees(function, model, ids=rng.integers(0, 50, shape))
    assert compiled(function) == 2, "one of numbers, one of symbols"
    agrees(function, model, ids=rng.integers(0, 50, (3, 1)))
    assert compiled(function) == 3, "a size of 1 is broadcast: it has a program of its own"
    with pytest.raises(WeftError, match="index"):
        function(np.full((4, 6), 50))


def test_what_a_model_decides_by_its_sizes_is_decided_at_each() -> None:
    """Longer inputs go another way, which no program of the shorter ones may take."""
    node = helper.make_node
    long = helper.make_graph(
        [node("Neg", ["x"], ["a"])], "long", [], [helper.make_tensor_value_info("a", T.FLOAT, None)]
    )
    short = helper.make_graph(
        [node("Abs", ["x"], ["b"])], "short", [], [helper.make_tensor_value_info("b", T.FLOAT, None)]
    )
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Greater", ["length", "limit"], ["is_long"]),
        node("If", ["is_long"], ["y"], then_branch=long, else_branch=short),
    ]
    arrays = {"one": np.array(1), "limit": np.array(8)}
    model = model_of(nodes, {"x": (T.FLOAT, [2, "length"])}, ["y"], arrays)
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    for length in (5, 7, 3, 9, 12, 6, 20):
        agrees(function, model, x=rng.normal(0, 1, (2, length)).astype("f"))
    assert compiled(function) <= 4


@pytest.mark.parametrize(("sizes", "count"), [([(2, 9), (3, 9), (5, 9), (4, 9)], 2), ([(2, 8), (2, 10), (2, 12)], 3)])
def test_convolutions_share_a_program_for_any_number_of_images(sizes: list[tuple[int, int]], count: int) -> None:
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])]
    arrays = {"w": rng.normal(0, 0.2, (4, 3, 3, 3)).astype("f")}
    model = model_of(nodes, {"x": (T.FLOAT, ["n", 3, 8, "width"])}, ["y"], arrays)
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    for images, width in sizes:
        agrees(function, model, x=rng.normal(0, 1, (images, 3, 8, width)).astype("f"))
    assert compiled(function) == count


def test_positions_are_counted_at_each_size() -> None:
    """A range as long as the input is a constant of each import: it becomes an op that counts."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Cast", ["places"], ["wide"], to=T.FLOAT),
        node("Div", ["x", "scale"], ["small"]),
        node("Add", ["small", "wide"], ["y"]),
    ]
    arrays = {"zero": np.array(0), "one": np.array(1), "scale": np.float32(3)}
    model = model_of(nodes, {"x": (T.FLOAT, ["n", "length"])}, ["y"], arrays)
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    for shape in ((2, 5), (3, 9), (4, 40), (6, 7), (2, 3)):
        agrees(function, model, x=rng.normal(0, 1, shape).astype("f"))
    assert compiled(function) == 2


def placed() -> Any:
    """Kinds of tokens, and places that a grid of indices picks, are all made of sizes, as exporters write them."""
    node, rng = helper.make_node, np.random.default_rng(0)
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"], axis=0),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Expand", ["kind", "shape"], ["kinds"]),
        node("Gather", ["kinds_table", "kinds"], ["e"]),
        node("ReduceMean", ["e"], ["bias"], axes=[2], keepdims=0),
        node("Range", ["zero", "n", "one"], ["rows"]),
        node("Range", ["zero", "length", "one"], ["columns"]),
        node("Unsqueeze", ["rows", "last"], ["rows2"]),
        node("Expand", ["rows2", "shape"], ["grid0"]),
        node("Expand", ["columns", "shape"], ["grid1"]),
        node("Unsqueeze", ["grid0", "last"], ["grid02"]),
        node("Unsqueeze", ["grid1", "last"], ["grid12"]),
        node("Concat", ["grid02", "grid12"], ["grid"], axis=-1),
        node("GatherND", ["x", "grid"], ["picked"]),
        node("Add", ["picked", "bias"], ["y"]),
    ]
    arrays = {"zero": np.array(0), "one": np.array(1), "last": np.array([-1]), "kind": np.array([[1]])}
    arrays |= {"kinds_table": rng.normal(0, 1, (2, 6)).astype("f")}
    return model_of(nodes, {"x": (T.FLOAT, ["n", "length"])}, ["y"], arrays)


def test_arrays_that_are_made_of_sizes_are_computed_at_each() -> None:
    model = placed()
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    for shape in ((2, 5), (3, 9), (4, 40), (6, 7), (2, 3)):
        agrees(function, model, x=rng.normal(0, 1, shape).astype("f"))
    assert compiled(function) == 2, "one of numbers, one of symbols"


def test_sizes_with_common_factors_are_told_apart() -> None:
    """At (2, 8) and (3, 12) twelve rows are three times the length: other sizes say which it is."""
    model = attention()
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    rng = np.random.default_rng(1)
    for shape in ((2, 8), (3, 12), (4, 11), (5, 6)):
        agrees(function, model, ids=rng.integers(0, 50, shape))
    assert compiled(function) == 2, "one of numbers, one of symbols"


def test_programs_that_no_other_size_shares_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triangular numbers look linear in any two sizes that follow each other, and are not."""
    monkeypatch.setattr(stage_functions, "_PROGRAMS", 2, raising=False)
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Add", ["length", "one"], ["next"]),
        node("Mul", ["length", "next"], ["twice"]),
        node("Div", ["twice", "two"], ["triangle"]),
        node("Cast", ["triangle"], ["factor"], to=T.FLOAT),
        node("Mul", ["x", "factor"], ["y"]),
    ]
    model = model_of(nodes, {"x": (T.FLOAT, ["n", "length"])}, ["y"], {"one": np.array(1), "two": np.array(2)})
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    for length in (4, 5, 6, 7, 8, 4):
        agrees(function, model, x=np.ones((2, length), "f"))
    families = function._program._functions._families  # type: ignore[attr-defined]
    assert max(len(family.programs) for family in families) <= 2


def test_recurrent_layers_share_a_program_for_any_length() -> None:
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(0, 0.5, (1, 20, 3)).astype("f"), "r": rng.normal(0, 0.5, (1, 20, 5)).astype("f")}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=5)
    model = model_of([node], {"x": (T.FLOAT, ["length", "batch", 3])}, ["y", "h"], arrays)
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    for length, batch in ((7, 3), (9, 5), (12, 2), (30, 4)):
        agrees(function, model, x=rng.normal(0, 1, (length, batch, 3)).astype("f"))
    assert compiled(function) == 2, "one of numbers, one of symbols"


def test_scans_share_a_program_for_any_length() -> None:
    node, rng = helper.make_node, np.random.default_rng(0)
    then = helper.make_graph([node("Neg", ["t"], ["p"])], "then", [], [helper.make_tensor_value_info("p", 1, None)])
    other = helper.make_graph([node("Tanh", ["t"], ["q"])], "other", [], [helper.make_tensor_value_info("q", 1, None)])
    info = helper.make_tensor_value_info
    inner = [
        node("Add", ["s", "e"], ["t"]),
        node("ReduceSum", ["t"], ["sum"], keepdims=0),
        node("Less", ["sum", "zero"], ["less"]),
        node("If", ["less"], ["next"], then_branch=then, else_branch=other),
        node("Mul", ["next", "e"], ["out"]),
    ]
    body = helper.make_graph(
        inner, "body", [info("s", 1, None), info("e", 1, None)], [info("next", 1, None), info("out", 1, None)]
    )
    nodes = [
        node("ReduceSum", ["x", "axis"], ["start"], keepdims=0),
        node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1),
    ]
    arrays = {"axis": np.array([0]), "zero": np.float32(0)}
    model = model_of(nodes, {"x": (T.FLOAT, ["length", "n"])}, ["last", "y"], arrays)
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    for shape in ((6, 3), (8, 5), (11, 4), (25, 7)):
        agrees(function, model, x=rng.normal(0, 1, shape).astype("f"))
    assert compiled(function) == 2, "one of numbers, one of symbols"
    agrees(function, model, x=rng.normal(0, 1, (3, 4)).astype("f"))
    assert compiled(function) > 2, "three turns are written out"


def test_turns_that_are_another_size_by_chance_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scanned is twice as long as one input, and as long as another at the sizes that were met."""

    def verified(self: Outline) -> Any:
        function = built(self)
        function.verify()
        return function

    built = Outline.built
    monkeypatch.setattr(Outline, "built", verified)
    node, info, rng = helper.make_node, helper.make_tensor_value_info, np.random.default_rng(0)
    inner = [node("Add", ["s", "e"], ["next"]), node("Mul", ["next", "e"], ["out"])]
    given, made = [info("s", 1, None), info("e", 1, None)], [info("next", 1, None), info("out", 1, None)]
    nodes = [
        node("ReduceSum", ["x", "axis"], ["start"], keepdims=0),
        node("Concat", ["y", "y"], ["twice"], axis=0),
        node(
            "Scan",
            ["start", "twice"],
            ["last", "o"],
            body=helper.make_graph(inner, "b", given, made),
            num_scan_inputs=1,
        ),
    ]
    inputs = {"x": (T.FLOAT, ["n", 2]), "y": (T.FLOAT, ["k", 2])}
    model = model_of(nodes, inputs, ["last", "o"], {"axis": np.array([0])})
    function = weft.onnx.load(model, config=CONFIG, threads=1)
    for n, k in ((6, 3), (8, 4), (10, 5), (10, 4)):
        agrees(function, model, x=rng.normal(0, 1, (n, 2)).astype("f"), y=rng.normal(0, 1, (k, 2)).astype("f"))
