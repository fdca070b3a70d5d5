"""Graphs as text: compiled for the processor, and called on arrays of any library."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from weft.config import Config
from weft.errors import DTypeError, GuardError, ParseError, ShapeError, WeftError
from weft.frontends.text import compile_text
from weft.runtime import stored_programs

ROWS, RESULT = 'tensor<?x8xf32, #graph.sizes<["s0", "8"]>>', 'tensor<?x3xf32, #graph.sizes<["s0", "3"]>>'
TEXT = f"""
"graph.func"() ({{
^bb0(%x: {ROWS}, %w: tensor<8x3xf32>):
  %0 = "graph.dot"(%x, %w) : ({ROWS}, tensor<8x3xf32>) -> {RESULT}
  %1 = "graph.exp"(%0) : ({RESULT}) -> {RESULT}
  "graph.return"(%1) : ({RESULT}) -> ()
}}) {{sym_name = "f", arg_names = ["x", "w"], symbols = {{s0 = [2 : i64, 64 : i64]}}}} : () -> ()
"""
HERE = Config(cache=False)


def _arrays(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((rows, 8), (8, 3)))
    return x, w, np.exp(x.astype(np.float64) @ w)


def test_sizes_are_those_of_the_arrays() -> None:
    function = compile_text(TEXT, config=HERE)
    for rows in (2, 7, 64):
        x, w, expected = _arrays(rows)
        (found,) = function(x, w)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        (named,) = function(x, w=w)
        np.testing.assert_array_equal(found, named)


def test_constants_are_given_once_and_left_out_of_calls() -> None:
    x, w, expected = _arrays(5)
    function = compile_text(TEXT, config=HERE, constants={"w": w})
    assert function.executor.fixed == (1,)
    np.testing.assert_allclose(function(x)[0], expected, rtol=1e-5)
    with pytest.raises(GuardError, match="takes x"):
        function(x, w)


def test_arrays_of_any_strides_and_libraries_are_read() -> None:
    torch = pytest.importorskip("torch")
    function = compile_text(TEXT, config=HERE)
    x, w, expected = _arrays(6)
    np.testing.assert_allclose(function(np.asfortranarray(x), w[:, ::-1].copy()[:, ::-1])[0], expected, rtol=1e-5)
    np.testing.assert_allclose(function(torch.tensor(x), torch.tensor(w).T.contiguous().T)[0], expected, rtol=1e-5)


def test_narrow_floats_come_by_dlpack() -> None:
    torch = pytest.importorskip("torch")
    text = TEXT.replace("f32", "bf16")
    x, w, _ = _arrays(6)
    x, w = x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
    function = compile_text(text, config=HERE)
    (found,) = function(*(torch.tensor(each.astype(np.float32)).bfloat16() for each in (x, w)))
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, function(x, w)[0])


def test_what_does_not_fit_is_refused_by_name() -> None:
    function = compile_text(TEXT, config=HERE)
    x, w, _ = _arrays(4)
    with pytest.raises(ShapeError, match="the argument w of f has the shape \\(8, 3\\), got \\(3, 8\\)"):
        function(x, w.T)
    with pytest.raises(DTypeError, match="the argument x of f is of type f32, got f64"):
        function(x.astype(np.float64), w)
    with pytest.raises(GuardError, match="s0 from 2 to 64, got 65"):
        function(np.zeros((65, 8), np.float32), w)
    with pytest.raises(WeftError, match="no argument is called 'W'"):
        compile_text(TEXT, config=HERE, constants={"W": w})
    with pytest.raises(ParseError, match="the functions f, but no g"):
        compile_text(TEXT, config=HERE, function="g")


def test_the_cache_is_asked_before_anything_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    stored_programs.disk_cache.cache_clear()
    x, w, expected = _arrays(3)
    try:
        compile_text(TEXT, config=Config(), constants={"w": w})
        monkeypatch.setattr("weft.frontends.text.parse_program", None)
        function = compile_text(TEXT, config=Config(), constants={"w": 2 * w})
        np.testing.assert_allclose(function(x)[0], expected**2, rtol=1e-4)
    finally:
        stored_programs.disk_cache.cache_clear()
