"""`weft compile`, `weft run` and `weft inspect`: what they write, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from weft.testing.hostile_artifacts import LAYER, layer_inputs, layer_source
from weft.tools.cli import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    Path("layer.mlir").write_text(LAYER)
    np.savez("weights.npz", **layer_source().weights)
    np.save("x.npy", layer_inputs())
    return tmp_path


def weft(*words: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_is_compiled_inspected_and_run() -> None:
    made = weft("compile", "layer.mlir", "--weights", "weights.npz", "-o", "m.weft", "--license", "MIT")
    assert made["ok"] and made["bytes"] == Path("m.weft").stat().st_size
    facts = weft("inspect", "m.weft")
    assert (facts["license"], facts["trusted"], facts["runs"]) == ("MIT", "machine", "host")
    assert [each["name"] for each in facts["arguments"] if not each["constant"]] == ["x"]
    for given in ("x.npy", "x=x.npy"):
        run = weft("run", "m.weft", "--input", given, "--output", "out.npz")
        assert run["how"] == "machine code for host"
        weights = layer_source().weights
        wanted = np.tanh(layer_inputs() @ weights["w"] + np.exp(weights["b"]))
        np.testing.assert_allclose(np.load("out.npz")["result0"], wanted, rtol=1e-5)


def test_reports_say_what_people_ask() -> None:
    CliRunner().invoke(app, ["compile", "layer.mlir", "--weights", "weights.npz", "-o", "m.weft"])
    text = CliRunner().invoke(app, ["inspect", "m.weft"]).output
    assert "layer(x f32[s0, 8]) -> result0 f32[s0, 3]" in text and "you made it on this machine" in text
    assert "graph.dot" in CliRunner().invoke(app, ["inspect", "m.weft", "--ir"]).output
    assert "result0 float32[5, 3]" in CliRunner().invoke(app, ["run", "m.weft", "--input", "x.npy"]).output


def test_weights_by_number_and_in_safetensors() -> None:
    from weft.artifact.safetensors import to_pieces

    frozen = LAYER.replace('"b"]', '"b"], constants = [1, 2]')
    Path("frozen.mlir").write_text(frozen)
    weights = layer_source().weights
    np.savez("numbered.npz", layer_inputs(), weights["w"], weights["b"])
    assert weft("compile", "frozen.mlir", "--weights", "numbered.npz", "-o", "a.weft")["ok"]
    Path("w.safetensors").write_bytes(b"".join(to_pieces(weights)))
    assert weft("compile", "layer.mlir", "--weights", "w.safetensors", "-o", "b.weft")["ok"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "none.weft"), 1, "cannot be opened"),
        (("inspect", "layer.mlir"), 1, "not an artifact"),
        (("compile", "none.mlir", "-o", "m.weft"), 1, "not a file"),
        (("compile", "x.npy", "-o", "m.weft"), 1, "none of the models"),
        (("compile", "layer.mlir", "-o", "m.weft", "--target", "z80"), 1, "no target 'z80'"),
        (("compile", "layer.mlir", "-o", "m.weft", "--target", "sm_1"), 1, "no code for sm_1"),
        (("compile", "layer.mlir", "-o", "m.weft", "--emit", "wasm"), 2, "'wasm'"),
        (("compile", "layer.mlir", "-o", "m.weft", "--weights", "x.npy"), 1, "no weights that can be read"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], code: int, said: str) -> None:
    answer = weft(*words, code=code)
    assert not answer["ok"] and said in answer["message"]


def test_inputs_that_are_none_are_refused() -> None:
    assert weft("compile", "layer.mlir", "--weights", "weights.npz", "-o", "m.weft")["ok"]
    Path("text.npy").write_text("no array")
    assert "not an array" in weft("run", "m.weft", "--input", "text.npy", code=2)["message"]
    assert "several arrays" in weft("run", "m.weft", "--input", "weights.npz", code=2)["message"]
    answer = weft("run", "m.weft", code=1)
    assert answer["error"] == "GuardError" and "x f32[s0, 8]" in answer["hint"]
    np.save("wide.npy", layer_inputs().astype(np.float64))
    assert weft("run", "m.weft", "--input", "wide.npy", code=1)["error"] == "DTypeError"


def test_an_onnx_model_names_what_there_is_instead() -> None:
    Path("m.onnx").write_bytes(b"")
    assert not weft("compile", "m.onnx", "-o", "m.weft", code=1)["ok"]
