"""Calls of models that are one launch: the same results as in full, new ones each time, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
import weft.onnx
from tests.frontends.onnx.models import arrays_of, info, layer, model
from weft.config import Config
from weft.errors import GuardError, PlaceError
from weft.runtime.launch_plan import LaunchPlan

CONFIG = Config.from_options({"cache": False})


def right(proto: Any, x: np.ndarray) -> np.ndarray:
    arrays = arrays_of(proto)
    return np.maximum(x.astype(np.float64) @ arrays["w"] + arrays["b"], 0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many results came from plans."""
    counted: list[int] = []
    call = LaunchPlan.__call__

    def counting(self: LaunchPlan, arrays: Any) -> Any:
        found = call(self, arrays)
        if found is not None:
            counted.append(len(found))
        return found

    monkeypatch.setattr(LaunchPlan, "__call__", counting)
    return counted


def test_the_third_call_with_arrays_alike_is_quick(quick: list[int]) -> None:
    proto = layer()
    function = weft.onnx.load(proto, config=CONFIG, threads=1)
    rng, made = np.random.default_rng(0), []
    for rows in (2, 2, 2, 2, 5, 5, 7, 7, 7, 3, 3, 3):
        x = rng.standard_normal((rows, 8)).astype("f")
        (y,) = function.run((), {"x": x})
        np.testing.assert_allclose(y, right(proto, x), atol=1e-5)
        assert not any(np.shares_memory(y, each) for each in made)
        made.append(y)
    assert len(quick) >= 4


def test_what_a_plan_does_not_know_is_looked_at(quick: list[int]) -> None:
    proto = layer()
    function = weft.onnx.load(proto, config=CONFIG, threads=1)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("f")
    for _ in range(4):
        function(x)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view("f").reshape(4, 8)
    for other in (np.asfortranarray(x), x[::-1][::-1], unaligned, np.lib.stride_tricks.as_strided(x, (4, 8), (32, 4))):
        np.testing.assert_allclose(function(other)[0], right(proto, other), atol=1e-5)
    for wrong in (x.astype(">f4"), x.astype("f8"), x[:, :7]):
        with pytest.raises(GuardError):
            function(wrong)
    with pytest.raises(GuardError, match="'x' is missing"):
        function.run((), {"y": x})
    before = len(quick)
    with weft.profile():
        np.testing.assert_allclose(function(x)[0], right(proto, x), atol=1e-5)
    assert len(quick) == before, "a profile sees every step"


def test_plans_are_used_from_several_threads() -> None:
    proto = layer()
    function = weft.onnx.load(proto, config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((2 + n % 3, 8)).astype("f") for n in range(60)]
    for x in given[:9]:
        function(x)
    with ThreadPoolExecutor(4) as pool:
        for x, (y,) in zip(given, pool.map(function, given), strict=True):
            np.testing.assert_allclose(y, right(proto, x), atol=1e-5)


def test_a_check_of_data_is_looked_at_in_quick_calls(quick: list[int]) -> None:
    given = [info("t", TensorProto.FLOAT, [9]), info("i", TensorProto.INT64, [3])]
    function = weft.onnx.load(model([helper.make_node("Gather", ["t", "i"], ["y"])], given, [info("y")]), config=CONFIG)
    table = np.arange(9, dtype="f")
    for _ in range(3):
        np.testing.assert_array_equal(function(table, np.array([0, -1, 8]))[0], [0, 8, 8])
    with pytest.raises(PlaceError, match="out of range"):
        function(table, np.array([0, 9, 1]))
    assert len(quick) >= 2
