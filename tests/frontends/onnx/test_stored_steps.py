"""A model that was imported once is found in the disk cache by its structure, with whatever weights it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft.onnx
from weft.frontends.onnx.import_nodes import FOLDED, Importer
from weft.runtime import stored_programs


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_CACHE", "1")
    stored_programs.disk_cache.cache_clear()
    yield
    stored_programs.disk_cache.cache_clear()


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **weights: np.ndarray) -> Any:
    def infos(given: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *each) for name, each in given.items()]

    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def norm_of_matmul(seed: int) -> tuple[Any, Any]:
    """A matmul with large weights and a scale, so that there is something to prepare; and what it computes."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((160, 130)).astype(np.float32)
    scale = rng.standard_normal(130).astype(np.float32)
    assert w.size > FOLDED
    nodes = [
        helper.make_node("Mul", ["w", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    made = model(nodes, {"x": (1, ["n", 160])}, {"y": (TensorProto.FLOAT, ["n", 130])}, w=w, scale=scale)
    return made, lambda x: np.maximum(x @ (w * scale), 0)


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch) -> Any:
    def refuse() -> None:
        def run(self: Importer) -> None:
            raise AssertionError("imported again")

        monkeypatch.setattr(Importer, "run", run)

    return refuse


def test_a_second_load_imports_nothing(no_import) -> None:
    x = np.random.default_rng(0).standard_normal((3, 160)).astype(np.float32)
    made, expected = norm_of_matmul(1)
    first = weft.onnx.load(made)(x)[0]
    no_import()
    again = weft.onnx.load(made)(x)[0]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(again, expected(x), rtol=1e-4, atol=1e-3)


def test_other_weights_are_their_own(no_import) -> None:
    """Large weights are not part of what a model is found by, small ones are."""
    x = np.random.default_rng(0).standard_normal((3, 160)).astype(np.float32)
    for seed in (1, 2):
        made, expected = norm_of_matmul(seed)
        for _ in range(2):
            np.testing.assert_allclose(weft.onnx.load(made)(x)[0], expected(x), rtol=1e-4, atol=1e-3)
    w = np.random.default_rng(3).standard_normal((160, 130)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    shapes: Any = {"x": (1, [3, 160])}, {"y": (1, [3, 130])}
    weft.onnx.load(model(nodes, *shapes, w=w))
    no_import()
    np.testing.assert_allclose(weft.onnx.load(model(nodes, *shapes, w=2 * w))(x)[0], 2 * (x @ w), rtol=1e-4, atol=1e-3)


def test_weights_in_constant_nodes_are_their_own() -> None:
    x = np.ones((1, 160), np.float32)
    for factor in (1, 2):
        w = np.full((160, 130), factor, np.float32)
        w[0] = 0
        nodes = [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w)),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        made = model(nodes, {"x": (1, [1, 160])}, {"y": (1, [1, 130])})
        for _ in range(2):
            np.testing.assert_allclose(weft.onnx.load(made)(x)[0], np.full((1, 130), 159.0 * factor), rtol=1e-5)


def test_elements_that_an_import_looks_at_choose_the_program(no_import) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Exp", ["r"], ["y"])]
    made = model(nodes, {"x": (1, [2, 6]), "shape": (7, [2])}, {"y": (1, None)})
    x = np.arange(12, dtype=np.float32).reshape(2, 6) / 4
    shapes = [np.array(each, np.int64) for each in ((3, 4), (12, 1))]
    for shape in shapes:
        weft.onnx.load(made)(x, shape)
    no_import()
    for shape in shapes:
        np.testing.assert_allclose(weft.onnx.load(made)(x, shape)[0], np.exp(x.reshape(shape)), rtol=1e-5)


def test_numbers_that_are_drawn_are_drawn_anew() -> None:
    made = model([helper.make_node("RandomNormal", [], ["y"], shape=[40])], {}, {"y": (1, [40])})
    first, second = (weft.onnx.load(made)()[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_damaged_entry_is_a_miss(tmp_path: Path) -> None:
    x = np.ones((3, 160), np.float32)
    made, expected = norm_of_matmul(1)
    weft.onnx.load(made)(x)
    for path in (tmp_path / "cache").rglob("*.weft"):
        data = bytearray(path.read_bytes())
        data[-20] ^= 255
        path.write_bytes(data)
    np.testing.assert_allclose(weft.onnx.load(made)(x)[0], expected(x), rtol=1e-4, atol=1e-3)


_STARTED = """
import sys
from pathlib import Path

import numpy as np

import weft.onnx

weft.onnx.load(Path({path!r})).run([np.ones((3, 160), np.float32)])
print(*sys.modules)
"""


def test_a_later_process_imports_no_compiler(tmp_path: Path) -> None:
    onnx.save(norm_of_matmul(1)[0], tmp_path / "model.onnx")
    program = _STARTED.format(path=str(tmp_path / "model.onnx"))
    first, second = (
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    )
    assert "weft.pipelines" in first
    assert "weft.pipelines" not in second
