"""ONNX models that are one graph, as artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import weft
from weft.artifact.sources import read_source
from weft.artifact.write import write_artifact
from weft.errors import UnsupportedError
from weft.frontends.onnx.one_graph import read_one_graph
from weft.tools.cli import app

W = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(tmp_path / "config"))


def saved(path: Path, nodes: list[onnx.NodeProto], rows: int | str | None, outputs: tuple[str, ...] = ("y",)) -> Path:
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


def test_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    """Also those that are no identifiers, as exporters write them, or that NumPy has a meaning for."""
    names = ("file", "495", "/head/out:0")
    nodes = [helper.make_node(op, ["tokens"], [name]) for op, name in zip(("Relu", "Exp", "Neg"), names, strict=True)]
    model = saved(tmp_path / "m.onnx", nodes, 4, names)
    write_artifact(tmp_path / "m.weft", read_source(model))
    loaded = weft.load(tmp_path / "m.weft")
    assert tuple(each.name for each in loaded.outputs) == names
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ["run", str(tmp_path / "m.weft"), "--input", f"tokens={tmp_path}/x.npy", "--output"]
    command += [str(tmp_path / "o.npz")]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0 and "495 float32[4, 8]" in told.output, told.output
    with np.load(tmp_path / "o.npz") as found:
        assert sorted(found.files) == sorted(names)
        np.testing.assert_array_equal(found["file"], np.maximum(x, 0))


def test_open_sizes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="size batch is open"):
        read_source(saved(tmp_path / "m.onnx", PRODUCT, "batch"))


@pytest.mark.parametrize("rows", [None, "?"])
def test_sizes_without_a_name_are_stated_by_their_place(tmp_path: Path, rows: Any) -> None:
    model = saved(tmp_path / "m.onnx", PRODUCT, rows)
    with pytest.raises(UnsupportedError, match=r"size tokens\.0 is open") as told:
        read_source(model)
    assert str(told.value.hint).startswith("say how large: --size tokens.0=1;")
    assert "tensor<4x8xf32>" in read_source(model, sizes={"tokens.0": 4}).text


def test_sizes_that_a_model_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no open size bach") as told:
        read_source(saved(tmp_path / "m.onnx", PRODUCT, "batch"), sizes={"batch": 4, "bach": 2})
    assert told.value.hint == "it leaves open batch"


def test_a_model_of_several_graphs_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["tokens"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=1)]
    with pytest.raises(UnsupportedError):
        read_source(saved(tmp_path / "m.onnx", nodes, 4))


def test_results_that_are_inputs_or_come_twice_are_new(tmp_path: Path) -> None:
    nodes = [*PRODUCT, helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(W[:2]))]
    outputs = ("y", "tokens", "h", "tokens", "one", "w")
    model = saved(tmp_path / "m.onnx", [*nodes, helper.make_node("Identity", ["y"], ["y2"])], 4, (*outputs, "y2"))
    write_artifact(tmp_path / "m.weft", read_source(model))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    loaded = weft.load(tmp_path / "m.weft")
    assert loaded.how == "machine code for host"
    results = loaded(tokens=x)
    expected = (np.maximum(x @ W, 0), x, x @ W, x, W[:2], W, np.maximum(x @ W, 0))
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)
        assert not any(np.shares_memory(result, other) for other in (x, *results[:number]))


def test_a_result_of_several_tensors_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["tokens", "w"], ["y"])]
    with pytest.raises(UnsupportedError, match="as one of its results"):
        read_source(saved(tmp_path / "m.onnx", [*PRODUCT[:1], *nodes], 4, ("y", "h")))


@pytest.mark.parametrize("ends_by_data", [False, True])
def test_a_loop_may_hand_an_input_on(tmp_path: Path, ends_by_data: bool) -> None:
    nodes = [helper.make_node("Add", ["s", "k"], ["t"]), helper.make_node("ReduceMax", ["t"], ["m"], keepdims=0)]
    nodes += [helper.make_node("Less", ["m", "limit"], ["c2"])]
    body = helper.make_graph(
        nodes if ends_by_data else nodes[:1],
        "body",
        [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("s", (2, 8)), info("k", (2, 8))],
        [info("c2" if ends_by_data else "c", (), TensorProto.BOOL), info("t", (2, 8)), info("k", (2, 8))],
    )
    count = helper.make_node("Constant", [], ["n"], value=numpy_helper.from_array(np.array(30)))
    loop = helper.make_node("Loop", ["n", "yes" if ends_by_data else "", "z", "x"], ["y", "k2"], body=body)
    given = [info("z", (2, 8)), info("x", (2, 8))]
    given += [info("limit", ()), info("yes", (), TensorProto.BOOL)] if ends_by_data else []
    loaded = weft.load(kept(tmp_path, [count, loop], given, ["y", "k2"], "graph.loop"))
    z, x = np.zeros((2, 8), np.float32), np.full((2, 8), 0.5, np.float32)
    more = {"limit": np.array(4, np.float32), "yes": np.array(True)} if ends_by_data else {}
    y, k = loaded(z=z, x=x, **more)
    np.testing.assert_array_equal(y, np.full((2, 8), 4.0 if ends_by_data else 15.0))
    np.testing.assert_array_equal(k, x)
    assert not np.shares_memory(k, x)


def info(name: str, shape: tuple[int, ...] | None, type_: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type_, shape)


def kept(
    tmp_path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str], what: str
) -> Path:
    """The artifact of a model, whose graph has an op."""
    graph = helper.make_graph(
        nodes, "g", inputs, [info(name, None) for name in outputs], [numpy_helper.from_array(W, "w")]
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    assert what in read_one_graph(path, {})[0]
    write_artifact(tmp_path / "m.weft", read_source(path))
    return tmp_path / "m.weft"


@pytest.mark.parametrize("backward", [0, 1])
def test_an_artifact_keeps_a_scan(tmp_path: Path, backward: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["t", "t"], ["o"])],
        "body",
        [info("s", (2,)), info("e", (2,))],
        [info("t", (2,)), info("o", (2,))],
    )
    ways: Any = {"scan_input_directions": [backward], "scan_output_directions": [backward]}
    node = helper.make_node("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1, **ways)
    path = kept(tmp_path, [node], [info("z", (2,)), info("x", (9, 2))], ["last", "y"], "graph.loop")
    rng = np.random.default_rng(2)
    x, z = rng.standard_normal((9, 2)).astype(np.float32), rng.standard_normal(2).astype(np.float32)
    loaded = weft.load(path)
    assert loaded.how == "machine code for host"
    last, y = loaded(z=z, x=x)
    sums = z + np.cumsum(x[::-1] if backward else x, 0)
    np.testing.assert_allclose(last, sums[-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, (sums[::-1] if backward else sums) ** 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [0.5, 40.0, 1e9])
def test_an_artifact_keeps_a_loop_that_data_end(tmp_path: Path, limit: float) -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "v"], ["h"]),
            helper.make_node("Add", ["h", "s"], ["t"]),
            helper.make_node("ReduceMax", ["t"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "limit"], ["c2"]),
            helper.make_node("Identity", ["v"], ["v2"]),
        ],
        "body",
        [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("s", (4, 8)), info("v", (8, 8))],
        [info("c2", (), TensorProto.BOOL), info("t", (4, 8)), info("v2", (8, 8))],
    )
    count = helper.make_node("Constant", [], ["n"], value=numpy_helper.from_array(np.array(30)))
    nodes = [count, helper.make_node("Loop", ["n", "yes", "x", "m"], ["y", "m2"], body=body)]
    given = [info("x", (4, 8)), info("m", (8, 8)), info("limit", ()), info("yes", (), TensorProto.BOOL)]
    loaded = weft.load(kept(tmp_path, nodes, given, ["y"], "graph.loop"))
    x, m = np.ones((4, 8), np.float32), np.full((8, 8), 0.01, np.float32)
    for first in (True, False):
        y = loaded(x=x, m=m, limit=np.float32(limit), yes=np.array(first))[0]
        expected, turns = x.astype(np.float64), 0
        while first and turns < 30 and (turns == 0 or expected.max() < limit):
            expected, turns = expected @ m + expected, turns + 1
        np.testing.assert_allclose(y, expected, rtol=1e-4)


def test_an_artifact_keeps_branches_and_what_they_capture(tmp_path: Path) -> None:
    def side(op: str) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["tokens", "w"], [f"{op}h"]), helper.make_node(op, [f"{op}h"], [f"{op}y"])]
        return helper.make_graph(nodes, op, [], [info(f"{op}y", (4, 3))])

    nodes = [
        helper.make_node("ReduceSum", ["tokens"], ["total"], keepdims=0),
        helper.make_node("Less", ["zero", "total"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=side("Tanh"), else_branch=side("Neg")),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["zero"], value_float=0.0))
    loaded = weft.load(kept(tmp_path, nodes, [info("tokens", (4, 8))], ["y"], "graph.if"))
    x = np.abs(np.random.default_rng(3).standard_normal((4, 8))).astype(np.float32)
    np.testing.assert_allclose(loaded(tokens=x)[0], np.tanh(x @ W), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loaded(tokens=-x)[0], x @ W, rtol=1e-4, atol=1e-5)


def test_inputs_that_nothing_reads_are_still_taken(tmp_path: Path) -> None:
    sizes = (("a-1", 2), ("tokens", 4), ("x0", 5))
    graph = helper.make_graph(
        [helper.make_node("Shape", ["tokens"], ["n"]), helper.make_node("MatMul", ["x0", "w"], ["y"])],
        "scores",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name, rows in sizes],
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(W, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    write_artifact(tmp_path / "m.weft", read_source(tmp_path / "m.onnx"))
    loaded = weft.load(tmp_path / "m.weft")
    assert len(loaded.inputs) == 3 and loaded.inputs[:2] == ("a-1", "tokens")
    draws = np.random.default_rng(2)
    given = [draws.standard_normal((rows, 8)).astype(np.float32) for _, rows in sizes]
    shape, product = loaded(*given)
    assert shape.tolist() == [4, 8]
    np.testing.assert_allclose(product, given[2].astype(np.float64) @ W, rtol=1e-5, atol=1e-5)


def test_a_model_of_constants_alone_takes_its_input(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Shape", ["tokens"], ["n"])],
        "sizes",
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [2])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    write_artifact(tmp_path / "m.weft", read_source(tmp_path / "m.onnx"))
    loaded = weft.load(tmp_path / "m.weft")
    assert loaded.inputs == ("tokens",)
    assert loaded(tokens=np.zeros((4, 8), np.float32))[0].tolist() == [4, 8]
