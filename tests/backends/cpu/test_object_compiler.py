"""Kernels are compiled in parts, side by side: the parts together are what one module would be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.backends.cpu import object_compiler
from weft.backends.cpu.objects.archive import archive_of, objects_of
from weft.backends.llvm.module_parts import ModuleParts
from weft.config import Config
from weft.errors import CompilationError, LoweringError
from weft.frontends.text import compile_text
from weft.lower import shared_kernels
from weft.runtime.record import recording

TEXT = """
"graph.func"() ({
^bb0(%x: tensor<40x64xf32>, %w: tensor<64x64xf32>, %i: tensor<40x50xi64>):
  %0 = "graph.dot"(%x, %w) : (tensor<40x64xf32>, tensor<64x64xf32>) -> tensor<40x64xf32>
  %1 = "graph.tanh"(%0) : (tensor<40x64xf32>) -> tensor<40x64xf32>
  %2 = "graph.dot"(%1, %w) : (tensor<40x64xf32>, tensor<64x64xf32>) -> tensor<40x64xf32>
  %3 = "graph.gather"(%2, %i) {dim = 1 : i64} : (tensor<40x64xf32>, tensor<40x50xi64>) -> tensor<40x50xf32>
  %4 = "graph.gather"(%0, %i) {dim = 1 : i64} : (tensor<40x64xf32>, tensor<40x50xi64>) -> tensor<40x50xf32>
  "graph.return"(%3, %4) : (tensor<40x50xf32>, tensor<40x50xf32>) -> ()
}) {sym_name = "f", arg_names = ["x", "w", "i"]} : () -> ()
"""


def test_parts_call_what_other_parts_have(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 64), np.float32), rng.standard_normal((64, 64), np.float32) * np.float32(0.1)
    i = rng.integers(0, 64, (40, 50))
    config = Config(cache=False, strict=True)
    whole = compile_text(TEXT, config=config)(x, w, i)
    monkeypatch.setattr(object_compiler, "_PART", 1)
    with recording(programs=True) as records:
        parts = compile_text(TEXT, config=config)
    assert records[0].programs["llvm"].count("define internal") > 2
    for one, other in zip(whole, parts(x, w, i), strict=True):
        np.testing.assert_array_equal(one, other)
    hidden = x @ w
    expected = np.take_along_axis(np.tanh(hidden) @ w, i, 1), np.take_along_axis(hidden, i, 1)
    for one, other in zip(whole, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_part_is_compiled_while_other_groups_are_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            events.append(name)
            return function(*given, **options)

        return call

    monkeypatch.setattr(object_compiler, "_PART", 1)
    monkeypatch.setattr(ModuleParts, "cut", noted("cut", ModuleParts.cut))
    monkeypatch.setattr(shared_kernels, "try_lower", noted("lower", shared_kernels.try_lower))
    compile_text(TEXT, config=Config(cache=False, strict=True))
    assert events.count("lower") > 2
    assert events[:4] == ["lower", "cut"] * 2


def test_a_failure_in_lowering_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Any] = []

    def fail_at_third(*given: Any) -> Any:
        lowered.append(given)
        if len(lowered) > 2:
            raise LoweringError("not today")
        return lower(*given)

    lower = shared_kernels.try_lower
    monkeypatch.setattr(object_compiler, "_PART", 1)
    monkeypatch.setattr(shared_kernels, "try_lower", fail_at_third)
    with pytest.raises(LoweringError, match="not today"):
        compile_text(TEXT, config=Config(cache=False, strict=True))
    assert not [each for each in threading.enumerate() if each.name.startswith("weft-compile")]


def test_an_archive_has_its_objects() -> None:
    objects = [b"one", b"four", b"", b"\x7fELF" * 100]
    assert objects_of(archive_of(objects)) == objects
    assert archive_of([b"alone"]) == b"alone" and objects_of(b"alone") == [b"alone"]


def test_a_damaged_archive_is_refused() -> None:
    whole = archive_of([b"one", b"more"])
    for damaged in (whole[:-2], whole[:40], whole.replace(b"3  ", b"x  "), whole.replace(b"`\n", b"..")):
        with pytest.raises(CompilationError, match="damaged"):
            objects_of(damaged)
