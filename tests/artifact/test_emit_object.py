"""Shared objects for C: the same bits as in Python, from a program that a C compiler made."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.artifact.emit_object import c_header, emit_object, identifier
from weft.artifact.processors import BASELINES, architecture, flags_here
from weft.artifact.sources import read_source
from weft.artifact.whole_files import write_together
from weft.artifact.write import Request, Source, write_artifact
from weft.errors import ArtifactError, UnsupportedError
from weft.testing.hostile_artifacts import LAYER, layer_inputs, layer_source

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "layer.h"

int main(int count, char **words) {
    int64_t rows = atoll(words[1]), shape[2];
    layer_shapes(&rows, shape);
    if (count != 3 || shape[0] != rows || shape[1] != 3) return 2;
    float *x = malloc(rows * 8 * sizeof *x), *y = malloc(rows * 3 * sizeof *y);
    if (fread(x, sizeof *x, rows * 8, stdin) != (size_t)(rows * 8)) return 3;
    for (int turn = 0; turn < 3; turn++)
        if (layer(rows, x, y, atoi(words[2])) != 0) return 4;
    return fwrite(y, sizeof *y, rows * 3, stdout) != (size_t)(rows * 3);
}
"""


@dataclass(frozen=True)
class Program:
    """A C program beside a model's shared object, and what starts it."""

    folder: Path
    target: str
    command: tuple[str, ...]
    here: bool

    def results(self, x: np.ndarray, threads: int) -> np.ndarray:
        done = subprocess.run(
            [*self.command, str(len(x)), str(threads)], cwd=self.folder, input=x.tobytes(), capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return np.frombuffer(done.stdout, np.float32).reshape(len(x), 3)


@pytest.fixture(scope="module", params=["host", "aarch64", "x86-64-v3"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """One for each target: those of another family are linked by a cross compiler and run under emulation."""
    folder = tmp_path_factory.mktemp("program")
    family = platform.machine() if request.param == "host" else architecture(BASELINES[request.param][0])
    here = family == platform.machine()
    compiler, emulator = ("cc", ()) if here else (f"{family}-linux-gnu-gcc", (f"qemu-{family}",))
    if missing := [name for name in (compiler, *emulator) if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: qemu-user, gcc-aarch64-linux-gnu)")
    if here and request.param in BASELINES and not flags_here().issuperset(BASELINES[request.param][2]):
        pytest.skip(f"this processor is less than {request.param}")
    emit_object(folder / "layer.so", layer_source(), Request((request.param,)))
    (folder / "main.c").write_text(PROGRAM)
    command = [compiler, "-std=c99", "-Wall", "-Werror", "main.c", "./layer.so", "-o", "main", "-Wl,-rpath,$ORIGIN"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    start = ("./main",) if here else (*emulator, "-L", f"/usr/{family}-linux-gnu", "./main")
    return Program(folder, request.param, start, here)


@pytest.mark.parametrize("rows", [1, 7, 5000])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_c_program_gives_the_same_bits(program: Program, rows: int, threads: int, tmp_path: Path) -> None:
    x, source = layer_inputs(rows), layer_source()
    found = program.results(x, threads)
    if program.here:
        write_artifact(tmp_path / "layer.weft", source, Request((program.target,)))
        model = weft.load(tmp_path / "layer.weft", trust=True)
        assert program.target in model.how
        np.testing.assert_array_equal(found, model(x)[0])
    else:  # no Python of that family is at hand: the bits are those of one thread, and float64 judges them
        np.testing.assert_array_equal(found, program.results(x, 1))
    weight, bias = (source.weights[name].astype(np.float64) for name in ("w", "b"))
    exact = np.tanh(x.astype(np.float64) @ weight + np.exp(bias))
    assert np.abs(found - exact).max() <= 16 * np.finfo(np.float32).eps


def test_a_shared_object_is_for_one_target(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="one target"):
        emit_object(tmp_path / "m.so", layer_source(), Request(("host", "x86-64-v3")))
    paths = emit_object(tmp_path / "m.so", layer_source(), Request(("aarch64",)))
    assert paths[0].read_bytes()[:20].hex() == "7f454c4602010100000000000000000003 00 b700".replace(" ", "")


def test_a_call_returns_the_check_that_its_data_has_not_passed(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    tensors = [
        onnx.helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", 1, [4, 3]), ("i", 7, [3]), ("y", 1, [3, 3]))
    ]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Gather", ["x", "i"], ["y"])], "g", tensors[:2], tensors[2:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "rows.onnx")
    emit_object(tmp_path / "rows.so", read_source(tmp_path / "rows.onnx"), Request(("host",)))
    run = ctypes.CDLL(tmp_path / "rows.so").rows_run
    run.restype = ctypes.c_int64
    x, y, check = np.arange(12, dtype=np.float32).reshape(4, 3), np.empty((3, 3), np.float32), np.empty((), np.int64)

    def called(*places: int) -> int:
        index = np.array(places)
        pointers = [(ctypes.c_void_p * len(each))(*(a.ctypes.data for a in each)) for each in ((x, index), (y, check))]
        returned = run(None, *pointers, 1)
        assert returned == check
        return returned

    assert called(0, -4, 3) == 0
    np.testing.assert_array_equal(y, x[[0, -4, 3]])
    assert called(0, 4, 1) == 1 == called(-5, 0, 0)


STATE = """
"graph.func"() ({
^bb0(%state: tensor<16xf32>, %x: tensor<16xf32>):
  %0 = "graph.add"(%state, %x) : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  "graph.return"(%0) : (tensor<16xf32>) -> ()
}) {sym_name = "step", arg_names = ["state", "x"], replaced = [[0 : i64, 0 : i64]]} : () -> ()
"""


def test_a_result_that_replaces_an_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="a C caller would have to copy"):
        emit_object(tmp_path / "m.so", Source(STATE), Request())


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("layer", "layer"),
        ("my-model.v2", "my_model_v2"),
        ("2x", "m_2x"),
        ("int", "m_int"),
        ("new", "m_new"),
        ("", "model"),
    ],
)
def test_names_are_those_that_c_takes(name: str, word: str) -> None:
    assert identifier(name) == word


def test_the_header_has_no_names_of_the_model_that_c_would_not_take() -> None:
    from weft.artifact.compile_native import compile_native
    from weft.frontends.text import read_function

    text = LAYER.replace('["x", "w", "b"]', '["x */ evil(", "w", "b"]')
    function, signature = read_function(text, None, ("w", "b"))
    header = c_header(
        "layer",
        compile_native(function, "host", Request().config),
        signature,
        ["y */ evil("],
        ["node 'x */ evil(': wrong\\\n"],
    )
    assert "x____evil_" in header and header.count("*/") == header.count("/*")
    assert "*/ evil(" not in header and "1: node 'x __ evil(': wrong__" in header


def test_results_have_the_names_of_the_model(tmp_path: Path) -> None:
    text = LAYER.replace(
        'arg_names = ["x", "w", "b"]', 'arg_names = ["x", "w", "b"], result_names = ["last hidden/state"]'
    )
    _, header = emit_object(tmp_path / "layer.so", replace(layer_source(), text=text), Request())
    assert "float *last_hidden_state /* f32[s0, 3] */" in header.read_text()


@pytest.mark.parametrize(
    "name", ["result", "result0", "threads", "sizes_", "inputs_", "layer_run", "float", "int64_t", "this"]
)
def test_arguments_may_have_the_names_of_the_header(name: str, tmp_path: Path) -> None:
    source = replace(layer_source(), text=LAYER.replace('["x", "w", "b"]', f'["{name}", "w", "b"]'))
    _, header = emit_object(tmp_path / "layer.so", source, Request())
    for compiler, language in (("cc", "c"), ("c++", "c++")):
        if shutil.which(compiler) is None:
            pytest.skip("no C compiler is installed")
        command = [compiler, "-x", language, "-Wall", "-Werror", "-Wno-unused-function", "-fsyntax-only", str(header)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_both_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "layer.h").mkdir()
    with pytest.raises(ArtifactError, match=r"layer\.h cannot be written"):
        emit_object(tmp_path / "layer.so", layer_source(), Request())
    assert [each.name for each in tmp_path.iterdir() if each.name != "config"] == ["layer.h"]


def test_what_was_there_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.so").write_bytes(b"old")
    moved: list[Any] = []

    def replaced(source: Any, target: Any) -> None:
        moved.append(target)
        if len(moved) == 2:
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    monkeypatch.setattr("weft.artifact.whole_files.os.replace", replaced)
    with pytest.raises(ArtifactError, match=r"a\.h cannot be written: No space left on device"):
        write_together({tmp_path / "a.so": b"new", tmp_path / "a.h": b"new"})
    assert (tmp_path / "a.so").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir() if each.name != "config"] == ["a.so"]


def test_a_gpu_and_a_header_s_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is for a processor, and sm_90a is a GPU") as told:
        emit_object(tmp_path / "layer.so", layer_source(), Request(("sm_90a",)))
    assert "leave --emit out" in str(told.value.hint)
    with pytest.raises(ArtifactError, match="where the header would be"):
        emit_object(tmp_path / "layer.h", layer_source(), Request())
