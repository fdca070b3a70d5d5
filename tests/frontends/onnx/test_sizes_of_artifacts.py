"""Artifacts of ONNX models with open sizes: one file for a range of them, or a refusal that lists what is open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import weft
from tests.frontends.onnx.test_open_sizes import attention, model_of, placed
from weft.artifact.sources import read_source
from weft.artifact.write import write_artifact
from weft.errors import GuardError, PlaceError, UnsupportedError
from weft.tools.cli import app


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(tmp_path / "config"))


def kept(folder: Path, model: Any) -> Path:
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_one_file_serves_a_range_of_sizes(tmp_path: Path) -> None:
    model = attention()
    command = ["compile", str(kept(tmp_path, model)), "-o", str(tmp_path / "m.weft")]
    done = CliRunner().invoke(app, [*command, "--size", "batch=2..9", "--size", "length=2..40"])
    assert done.exit_code == 0, done.output
    told = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.weft"), "--json"])
    facts = json.loads(told.stdout.splitlines()[-1])
    assert [(each["symbol"], each["least"], each["most"]) for each in facts["ranges"]] == [
        ("batch", 2, 9),
        ("length", 2, 40),
    ]
    loaded = weft.load(tmp_path / "m.weft")
    assert [each.name for each in loaded.outputs] == ["y", "mean"]
    rng = np.random.default_rng(0)
    for shape in ((2, 2), (3, 12), (9, 40), (4, 7), (2, 39)):
        ids = rng.integers(0, 50, shape)
        wanted: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"ids": ids})
        for found, each in zip(loaded(ids=ids), wanted, strict=True):
            np.testing.assert_allclose(found, each, atol=2e-6)
    with pytest.raises(GuardError, match="length from 2 to 40, got 41"):
        loaded(ids=np.zeros((2, 41), np.int64))
    with pytest.raises(PlaceError, match="out of range"):
        loaded(ids=np.full((2, 4), 50))


def test_arrays_that_are_made_of_sizes_are_the_same_in_small_and_large(tmp_path: Path) -> None:
    """Beyond some thousand elements they are not computed at import; the program is the same one."""
    model = placed()
    source = read_source(kept(tmp_path, model), sizes={"n": (2, 200), "length": (2, 400)})
    write_artifact(tmp_path / "m.weft", source)
    loaded = weft.load(tmp_path / "m.weft")
    for shape in ((2, 3), (200, 400), (31, 8)):
        x = np.random.default_rng(0).normal(0, 1, shape).astype("f")
        (wanted,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(loaded(x=x)[0], wanted, atol=2e-6)


def test_a_model_that_does_something_else_within_the_range_is_refused(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Slice", ["table", "zero", "length", "one"], ["positions"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Add", ["x", "positions"], ["y"]),
    ]
    arrays = {"table": np.zeros((1, 16), "f"), "zero": np.array([0]), "one": np.array([1])}
    model = model_of([*nodes[1:3], nodes[0], nodes[3]], {"x": (TensorProto.FLOAT, ["n", "length"])}, ["y"], arrays)
    path = kept(tmp_path, model)
    assert "tensor<?x?xf32" in read_source(path, sizes={"n": (2, 9), "length": (2, 16)}).text
    with pytest.raises(UnsupportedError, match=r"does not take n=.*, length=20: "):
        read_source(path, sizes={"n": (2, 9), "length": (2, 20)})


def test_all_open_sizes_are_listed_before_anything_is_imported(tmp_path: Path) -> None:
    infos = {"x": (TensorProto.FLOAT, ["batch", None, 4]), "mask": (TensorProto.FLOAT, ["batch", "length"])}
    model = model_of([helper.make_node("NoSuchOperator", ["x", "mask"], ["y"])], infos, ["y"], {})
    with pytest.raises(UnsupportedError, match=r"whose sizes batch, x\.1, length are open") as told:
        read_source(kept(tmp_path, model))
    assert "--size batch=1 --size x.1=1 --size length=1" in str(told.value.hint)


@pytest.mark.parametrize("text", ["batch=0..4", "batch=1..4", "batch=7..7", "batch=9..3"])
def test_ranges_of_other_programs_are_refused(tmp_path: Path, text: str) -> None:
    path = kept(tmp_path, attention())
    done = CliRunner().invoke(app, ["compile", str(path), "-o", "m.weft", "--size", text, "--size", "length=4"])
    assert done.exit_code != 0 and "cannot stay open" in done.output


def test_a_size_that_is_no_size_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, attention())
    for text in ("batch=a..4", "batch=2...", "batch", "batch=-1"):
        done = CliRunner().invoke(app, ["compile", str(path), "-o", "m.weft", "--size", text])
        assert done.exit_code != 0 and "states no size" in done.output
