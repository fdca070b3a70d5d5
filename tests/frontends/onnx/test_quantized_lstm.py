"""`DynamicQuantizeLSTM` with frozen weights: codes are multiplied, in every turn, and sums of them are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import helper

import weft.onnx
from weft.backends.cpu.target import host_target
from weft.frontends.onnx.load import OnnxFunction
from weft.ir.types import f32
from weft.testing.onnx_models import info, model

TURNS, ROWS, INPUTS, SIZE, WAYS = 5, 2, 33, 48, 2


def rounded(given: np.ndarray) -> np.ndarray:
    """What 256 steps from the least to the largest element leave of numbers."""
    least, most = min(given.min(), 0), max(given.max(), 0)
    scale = (most - least) / 255 or 1.0
    offset = np.round(-least / scale)
    return (np.clip(np.round(given / scale) + offset, 0, 255) - offset) * scale


def wide_constants(function: OnnxFunction) -> set[Any]:
    """The types of constants that are as large as weights."""
    state = next(iter(function._program._starts.values()))  # pyright: ignore[reportPrivateUsage]
    plan = next(iter(state.steps.values())).function.executor.executable.plan
    constants = [buffer.tensor for buffer in plan.buffers if buffer.role == "constant"]
    return {tensor.dtype for tensor in constants if np.prod(tensor.shape) >= 4 * SIZE * INPUTS}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_codes_are_multiplied_in_every_turn(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    about = np.iinfo(dtype)
    zero = 3 if dtype == np.int8 else 120
    codes = {
        name: rng.integers(about.min, about.max + 1, (WAYS, rows, 4 * SIZE)).astype(dtype)
        for name, rows in (("w", INPUTS), ("r", SIZE))
    }
    scales = {f"{name}s": np.array([1e-3, 2e-3], np.float32) for name in codes}
    zeros = {f"{name}z": np.full(WAYS, zero, dtype) for name in codes}
    x = rng.standard_normal((TURNS, ROWS, INPUTS)).astype(np.float32)
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    attributes: dict[str, Any] = {"hidden_size": SIZE, "direction": "bidirectional"}
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", **attributes)
    proto = model([node], [info("x", x.shape)], [info("y", None)], codes | scales | zeros)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    function = weft.onnx.load(proto)
    (y,) = function(x)
    for way in range(WAYS):
        w, r = ((codes[name][way].astype(float) - zero) * scales[f"{name}s"][way] for name in ("w", "r"))
        h, c, seen = np.zeros((ROWS, SIZE)), np.zeros((ROWS, SIZE)), rounded(x.astype(float))
        for turn in range(TURNS) if way == 0 else reversed(range(TURNS)):
            i, o, f, g = np.split(seen[turn] @ w + rounded(h) @ r, 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-each)) for each in (i, o, f))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            np.testing.assert_allclose(y[turn, way], h, atol=2e-6)
    assert (f32 in wide_constants(function)) != host_target().packs_bytes
