"""Indices that are out of range: a typed error that names the node, as ONNX says, and never the nearest place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import weft
import weft.onnx
from tests.frontends.onnx.models import F32, I64, info, model
from weft.artifact.manifest import SIGNATURES
from weft.artifact.sources import read_source
from weft.artifact.write import write_artifact
from weft.errors import DataError, PlaceError, UnsupportedError, WeftError
from weft.testing.hostile_artifacts import archive, members_of

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def gathering(op: str, places: Any, **attributes: Any) -> Any:
    node = helper.make_node(op, ["x", "i"], ["y"], name="rows", **attributes)
    inputs = [info("x", F32, (3, 4)), info("i", I64, np.shape(places))]
    return model([node], inputs, [info("y")])


@pytest.mark.parametrize(
    ("op", "right", "wrong", "attributes"),
    [
        ("Gather", [0, -3, 2], [0, 3, 1], {}),
        ("Gather", [[3], [-4]], [[-5], [0]], {"axis": 1}),
        ("GatherElements", [[0, 1, 2, -1]], [[0, 1, 2, 3]], {}),
        ("GatherND", [[2, 3], [-3, -4]], [[2, 3], [3, 0]], {}),
        ("GatherND", [[1], [2]], [[1], [-4]], {}),
    ],
)
def test_reads(op: str, right: Any, wrong: Any, attributes: dict[str, Any]) -> None:
    loaded = weft.onnx.load(gathering(op, right, **attributes))
    loaded(X, np.array(right))
    with pytest.raises(PlaceError, match=f"rows.*{op}.*out of range for dimension"):
        loaded(X, np.array(wrong))
    loaded(X, np.array(right))


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_writes(op: str) -> None:
    shape = (1, 4) if op == "ScatterElements" else (1, 1)
    node = helper.make_node(op, ["x", "i", "u"], ["y"], name="put")
    inputs = [info("x", F32, (3, 4)), info("i", I64, shape), info("u", F32, (1, 4))]
    loaded = weft.onnx.load(model([node], inputs, [info("y")]))
    update = np.ones((1, 4), np.float32)
    (y,) = loaded(X, np.full(shape, -1), update)
    np.testing.assert_array_equal(y[2], 1)
    with pytest.raises(PlaceError, match="put"):
        loaded(X, np.full(shape, 3), update)


def test_indices_in_the_file_are_refused_when_it_is_loaded() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="rows")]
    made = model(nodes, [info("x", F32, (3, 4))], [info("y")], {"i": np.array([0, 3])})
    with pytest.raises(PlaceError, match="rows"):
        weft.onnx.load(made)


def test_the_node_is_named_among_several_and_after_the_program_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"], name="first"),
        helper.make_node("Gather", ["x", "j"], ["b"], name="second", axis=1),
        helper.make_node("ReduceSum", ["b"], ["s"], keepdims=0),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    made = model(nodes, [info("x", F32, (3, 4)), info("i", I64, (2,)), info("j", I64, (2,))], [info("y")])
    for _ in range(2):
        loaded = weft.onnx.load(made)
        loaded(X, np.array([0, 1]), np.array([3, 3]))
        with pytest.raises(PlaceError, match="second"):
            loaded(X, np.array([0, 1]), np.array([3, 4]))
        with pytest.raises(PlaceError, match="first"):
            loaded(X, np.array([0, -4]), np.array([3, 3]))


def test_an_artifact_checks_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.onnx"
    onnx.save(gathering("Gather", [0, 1]), path)
    write_artifact(tmp_path / "rows.weft", read_source(path))
    loaded = weft.load(tmp_path / "rows.weft")
    (y,) = loaded(X, np.array([2, -1]))
    np.testing.assert_array_equal(y, X[[2, -1]])
    for one in (loaded, weft.load(tmp_path / "rows.weft", trust=True), _of_nobody(tmp_path / "rows.weft")):
        with pytest.raises(PlaceError, match=r"rows: .*an index is out of range for dimension 0, of size 3"):
            one(X, np.array([0, 3]))


def _of_nobody(path: Path) -> Any:
    """The model of an artifact whose code nobody vouches for."""
    members = members_of(path.read_bytes())
    members[SIGNATURES] = json.dumps({"machine": "0" * 64, "key": "", "signature": ""}).encode()
    other = path.with_name("other.weft")
    other.write_bytes(archive(members))
    loaded = weft.load(other)
    assert loaded.how.startswith("compiled")
    return loaded


def test_a_split_into_a_great_many_parts_is_refused() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, name="split"),
        helper.make_node("SequenceLength", ["parts"], ["y"]),
    ]
    with pytest.raises(UnsupportedError, match=r"split.*1073741824 parts, expected at most 4096"):
        weft.onnx.load(model(nodes, [info("x", F32, (1 << 30,))], [info("y", I64)]))


def test_an_operator_on_strings_without_its_input_is_a_typed_error() -> None:
    node = helper.make_node("StringSplit", [""], ["y", "n"], delimiter=",", name="words")
    with pytest.raises(WeftError, match="words"):
        weft.onnx.load(model([node], [], [info("y", 8), info("n", I64)]))()


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("length", [4, "t"])
def test_lengths_of_sequences(op: str, gates: int, length: int | str) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, gates * 5, n)).astype(np.float32) for name, n in (("w", 3), ("r", 5))}
    node = helper.make_node(op, ["x", "w", "r", "", "lengths"], ["y"], name="turns", hidden_size=5)
    inputs = [info("x", F32, (length, 2, 3)), info("lengths", onnx.TensorProto.INT32, (2,))]
    loaded = weft.onnx.load(model([node], inputs, [info("y")], arrays))
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    for lengths in ([4, 1], [0, 2]):
        loaded(x, np.array(lengths, np.int32))
    for lengths in ([5, 1], [-1, 2]):
        with pytest.raises(DataError, match=f"'turns' .{op}.*length is negative, or more than the room"):
            loaded(x, np.array(lengths, np.int32))


def test_lengths_that_the_model_states() -> None:
    arrays = {
        "w": np.ones((1, 5, 3), np.float32),
        "r": np.ones((1, 5, 5), np.float32),
        "lengths": np.array([5], np.int32),
    }
    node = helper.make_node("RNN", ["x", "w", "r", "", "lengths"], ["y"], name="turns", hidden_size=5)
    with pytest.raises(DataError, match="of 4"):
        weft.onnx.load(model([node], [info("x", F32, (4, 1, 3))], [info("y")], arrays))
