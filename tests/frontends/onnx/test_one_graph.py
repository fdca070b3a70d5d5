"""ONNX models that are one graph, as artifacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.artifact.sources import read_source
from weft.artifact.write import write_artifact
from weft.errors import UnsupportedError
from weft.frontends.onnx.one_graph import read_one_graph

W = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(tmp_path / "config"))


def saved(path: Path, nodes: list[onnx.NodeProto], rows: int | str, outputs: tuple[str, ...] = ("y",)) -> Path:
    graph = helper.make_graph(
        nodes,
        "scores",
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [rows, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(W, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


PRODUCT = [helper.make_node("MatMul", ["tokens", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]


@pytest.mark.parametrize("rows", [4, "batch"])
def test_a_model_is_written_and_run(tmp_path: Path, rows: int | str) -> None:
    model = saved(tmp_path / "m.onnx", PRODUCT, rows)
    write_artifact(tmp_path / "m.weft", read_source(model, sizes={"batch": 4} if rows == "batch" else None))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    loaded = weft.load(tmp_path / "m.weft")
    assert loaded.inputs == ("tokens",) and loaded.how == "machine code for host"
    np.testing.assert_allclose(loaded(tokens=x)[0], np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)


def test_open_sizes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="size batch is open"):
        read_source(saved(tmp_path / "m.onnx", PRODUCT, "batch"))


def test_a_model_of_several_graphs_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["tokens"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=1)]
    with pytest.raises(UnsupportedError):
        read_source(saved(tmp_path / "m.onnx", nodes, 4))


def test_a_result_that_is_an_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="as its results"):
        read_source(saved(tmp_path / "m.onnx", PRODUCT, 4, ("y", "tokens")))


def test_loops_of_an_artifact_are_written_out(tmp_path: Path) -> None:
    """A program that runs on its own has none."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [helper.make_tensor_value_info(name, 1, (2,)) for name in ("s", "e")],
        [helper.make_tensor_value_info(name, 1, (2,)) for name in ("t", "o")],
    )
    node = helper.make_node("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    inputs = [helper.make_tensor_value_info("z", 1, (2,)), helper.make_tensor_value_info("x", 1, (9, 2))]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ("last", "y")]
    path = tmp_path / "scan.onnx"
    graph = helper.make_graph([node], "scan", inputs, outputs)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    text, _ = read_one_graph(path, {})
    assert "graph.loop" not in text
