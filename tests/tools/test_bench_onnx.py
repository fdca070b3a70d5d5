"""`weft bench model.onnx`: figures of starts and calls; what is missing, open or wrong is said."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from weft.config import Config  # noqa: E402
from weft.errors import GuardError  # noqa: E402
from weft.frontends.onnx.load import OnnxFunction  # noqa: E402
from weft.frontends.onnx.read import read_model  # noqa: E402
from weft.testing.bench.onnx_difference import difference  # noqa: E402
from weft.testing.bench.onnx_float64 import widened  # noqa: E402
from weft.testing.bench.onnx_inputs import InputRules  # noqa: E402
from weft.tools.bench import onnx as bench_onnx  # noqa: E402

from .conftest import last_json  # noqa: E402

QUICK = ("--rounds", "2", "--seconds", "0.1", "--threads", "1", "--json")


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A matmul over rows of an open number."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "layer",
        [info("x", TensorProto.FLOAT, ["n", 3])],
        [info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")],
    )
    path = tmp_path / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_a_model_by_its_extension(weft, layer) -> None:
    run = weft("bench", str(layer), "--size", "n=5", *QUICK)
    assert run.exit_code == 0, run.output
    figures = last_json(run)
    (case,) = figures["cases"]
    assert figures["ok"] and case["name"] == "layer" and case["inputs"] == {"x": ["float32", [5, 3]]}
    assert case["weft"] > 0 and case["cold_start"] > case["warm_start"] > 0
    assert case["ratio"] is None and case["onnxruntime"] is None


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs onnxruntime")
def test_a_peer_is_compared(weft, layer) -> None:
    run = weft("bench", str(layer), "--peer", "onnxruntime", *QUICK)
    assert run.exit_code == 0, run.output
    (case,) = last_json(run)["cases"]
    assert case["ratio"] > 0 and case["error"] < 1e-6 and case["peer_load"] > 0


def test_results_are_compared_with_float64(weft, layer) -> None:
    run = weft("bench", str(layer), "--float64", *QUICK)
    assert run.exit_code == 0, run.output
    (case,) = last_json(run)["cases"]
    assert 0 <= case["float64_error"] < 1e-6 and case["peer_float64_error"] is None


def test_a_result_twice_as_far_from_float64_as_the_peers_is_wrong() -> None:
    race = {"error": 0.0, "float64_error": 3e-6, "peer_float64_error": 1e-6}
    near = {**race, "float64_error": 2e-6}
    of_the_last_bit = {**race, "float64_error": 2e-7, "peer_float64_error": 0.0}
    results = [bench_onnx.OnnxResult("m", 1, {}, {}, each, 1e-3) for each in (race, near, of_the_last_bit)]
    assert [each.wrong for each in results] == [True, False, False]


def test_a_model_is_widened() -> None:
    """Numbers that stand in attributes, types that they name and graphs inside of nodes."""
    halves = [
        helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])
        for name, node in (
            ("a", helper.make_node("Constant", [], ["a"], value_floats=[0.1, 0.2])),
            ("b", helper.make_node("Cast", ["x"], ["b"], to=TensorProto.FLOAT)),
        )
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=halves[0], else_branch=halves[1])
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [2]), info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.FLOAT, [2])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    model = OnnxFunction(widened(read_model(data)), Config(cache=False))
    for condition, expected in ((True, [np.float32(0.1), np.float32(0.2)]), (False, [1 / 3, 2 / 3])):
        (found,) = model(np.array([1 / 3, 2 / 3]), np.array(condition))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.array(expected, np.float64))


def test_a_peer_that_is_missing_or_unknown(weft, layer, monkeypatch) -> None:
    monkeypatch.setattr(bench_onnx, "missing_packages", lambda needed: list(needed))
    run = weft("bench", str(layer), "--peer", "onnxruntime", "--json")
    assert run.exit_code == 1 and last_json(run)["error"] == "MissingError"
    assert last_json(run)["hint"] == "pip install onnxruntime"
    run = weft("bench", str(layer), "--peer", "tvm", "--json")
    assert run.exit_code == 2 and "onnxruntime" in last_json(run)["hint"]


@pytest.mark.parametrize("wrong", [("--size", "n"), ("--shape", "x=3xthree"), ("--size", "n=-1")])
def test_wrong_options_are_told_before_anything_runs(weft, layer, wrong) -> None:
    run = weft("bench", str(layer), *wrong, "--json")
    assert run.exit_code == 2 and last_json(run)["hint"]


def test_a_failure_is_a_row_and_an_exit_code(weft, tmp_path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    run = weft("bench", str(tmp_path / "broken.onnx"), *QUICK)
    assert run.exit_code == 1
    assert "Error" in last_json(run)["cases"][0]["failures"]["weft"]


def test_inputs_by_rule(layer) -> None:
    import weft.onnx

    inputs = weft.onnx.load(layer).inputs
    assert InputRules().arrays(inputs)["x"].shape == (1, 3)
    assert InputRules(shapes={"x": [7, 3]}).arrays(inputs)["x"].shape == (7, 3)
    assert InputRules(sizes={"n": 2}, contents={"x": "4"}).arrays(inputs)["x"].tolist() == [[4] * 3] * 2
    with pytest.raises(GuardError, match="no input is called 'y'"):
        InputRules(shapes={"y": [1]}).arrays(inputs)


def test_a_difference_is_a_share_of_the_largest_value() -> None:
    a = np.array([1, 100], np.float32)
    assert difference([a], [a]) == 0
    assert difference([a + np.float32(1)], [a]) == pytest.approx(0.01)
    assert difference([a], [a[:1]]) == float("inf")
    assert difference([np.array([np.nan, 1])], [np.array([0.0, 1])]) == float("inf")
    assert difference([np.array([np.inf, 1])], [np.array([np.inf, 1])]) == 0
