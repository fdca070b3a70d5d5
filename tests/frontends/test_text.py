"""Graphs as text: compiled for the processor, and called on arrays of any library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.config import Config
from weft.errors import DTypeError, GuardError, ParseError, ShapeError, UnsupportedError, WeftError
from weft.frontends.text import compile_text
from weft.ir.types import Tensor, f32
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
SQUARE = "tensor<8x8xf32>"
ADD = f"""
"graph.func"() ({{
^bb0(%x: {SQUARE}, %w: {SQUARE}):
  %0 = "graph.add"(%x, %w) : ({SQUARE}, {SQUARE}) -> {SQUARE}
  "graph.return"(%0) : ({SQUARE}) -> ()
}}) {{sym_name = "f", arg_names = ["x", "w"]}} : () -> ()
"""
ADD_CONSTANT = ADD.replace("arg_names", "constants = [1 : i64], arg_names")
STATE = f"""
"graph.func"() ({{
^bb0(%s: {SQUARE}, %x: {SQUARE}):
  %0 = "graph.add"(%s, %s) : ({SQUARE}, {SQUARE}) -> {SQUARE}
  %1 = "graph.permute"(%x) {{dims = [1 : i64, 0 : i64]}} : ({SQUARE}) -> {SQUARE}
  %2 = "graph.add"(%0, %1) : ({SQUARE}, {SQUARE}) -> {SQUARE}
  "graph.return"(%2) : ({SQUARE}) -> ()
}}) {{sym_name = "f", arg_names = ["s", "x"], replaced = [[0 : i64, 0 : i64]]}} : () -> ()
"""


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


def _square() -> np.ndarray:
    return np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize(
    "w",
    [
        np.asfortranarray(_square()),
        _square().T,
        _square()[::-1],
        np.repeat(_square(), 2, 1)[:, ::2],
        np.broadcast_to(_square()[0], (8, 8)),
    ],
    ids=["columns", "transposed", "reversed", "steps", "one row"],
)
def test_constants_may_lie_in_any_strides(w: np.ndarray) -> None:
    x = np.zeros((8, 8), np.float32)
    np.testing.assert_array_equal(compile_text(ADD, config=HERE, constants={"w": w})(x)[0], w)
    np.testing.assert_array_equal(compile_text(ADD_CONSTANT, config=HERE)(x, w)[0], w)


def test_views_of_one_memory_are_different_constants() -> None:
    function = compile_text(ADD_CONSTANT, config=HERE)
    x, w = np.zeros((8, 8), np.float32), _square()
    for each in (w, w.T, w):
        np.testing.assert_array_equal(function(x, each)[0], each)


def test_constants_of_symbolic_sizes_are_copied_too() -> None:
    sized = 'tensor<?x?xf32, #graph.sizes<["s0", "s1"]>>'
    function = compile_text(ADD_CONSTANT.replace(SQUARE, sized), config=HERE)
    for shape in ((3, 5), (5, 3)):
        w = np.arange(15, dtype=np.float32).reshape(shape[::-1]).T
        np.testing.assert_array_equal(function(np.zeros(shape, np.float32), w)[0], w)


@pytest.mark.parametrize("text", [ADD, TEXT], ids=["as it is", "packed"])
def test_constants_are_taken_as_they_are_when_given(text: str) -> None:
    x, w, _ = _arrays(5) if text == TEXT else (_square(), _square(), None)
    function = compile_text(text, config=HERE, constants={"w": w})
    before = function(x)[0].copy()
    w += 1
    np.testing.assert_array_equal(function(x)[0], before)


def test_constants_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(ShapeError, match="the argument w of f"):
        compile_text(TEXT, config=HERE, constants={"w": np.zeros((2, 2), np.float32)})
    with pytest.raises(WeftError, match="constants that were not given: w"):
        compile_text(ADD_CONSTANT, config=HERE, constants={"x": _square()})


def test_a_replaced_argument_may_share_memory_with_others() -> None:
    function = compile_text(STATE, config=HERE)
    state = _square()
    expected = state + state + state.T
    (found,) = function(state, state.copy())
    assert np.shares_memory(found, state)
    np.testing.assert_array_equal(found, expected)
    both = np.concatenate([_square(), _square()])
    for s, x in ((both[:8], both[:8]), (both[:8], both[4:12]), (both[:8], both[7::-1])):
        both[:] = np.concatenate([_square(), _square()])
        expected = s + s + x.T
        np.testing.assert_array_equal(function(s, x)[0], expected)


def test_results_of_the_reference_are_no_arguments() -> None:
    text = ADD.replace('"graph.return"(%0)', '"graph.return"(%x)')
    x = _square()
    (found,) = compile_text(text, config=Config(cache=False, target="reference"))(x, x)
    assert not np.shares_memory(found, x)
    np.testing.assert_array_equal(found, x)


def test_a_size_that_no_argument_tells_is_refused() -> None:
    text = TEXT.replace('["s0", ', '["s0*2", ')
    with pytest.raises(UnsupportedError, match="the size s0 of f"):
        compile_text(text, config=HERE)


def test_processors_are_one_device() -> None:
    with pytest.raises(WeftError, match="no device is called 'cpu:3'"):
        compile_text(ADD, config=HERE, device="cpu:3")
    (found,) = compile_text(ADD, config=HERE, device="cpu:0")(_square(), _square())
    np.testing.assert_array_equal(found, 2 * _square())


@pytest.mark.parametrize(
    "wrong",
    [
        {"arguments": (Tensor(f32, (2, 2)), Tensor(f32, (8, 8)))},
        {"arguments": (Tensor(f32, (8, 8)), Tensor(f32, (2, 2)))},
        {"replaced": ()},
        {"replaced": (0, 7)},
        {"names": ("s", "s")},
        {"constants": (1,)},
    ],
    ids=lambda wrong: ", ".join(wrong),
)
@pytest.mark.parametrize("constants", [None, {"x": _square()}], ids=["free", "frozen"])
def test_a_stored_signature_has_to_fit_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], constants: dict[str, np.ndarray] | None
) -> None:
    if constants is not None and "constants" in wrong:
        wrong = {"constants": ()}
    store = stored_programs.store
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored_programs, "store", lambda k, p, c, calling: store(k, p, c, replace(calling, **wrong)))
    stored_programs.disk_cache.cache_clear()
    try:
        right = compile_text(STATE, config=Config(), constants=constants).signature
        assert compile_text(STATE, config=Config(), constants=constants).signature == right
    finally:
        stored_programs.disk_cache.cache_clear()
