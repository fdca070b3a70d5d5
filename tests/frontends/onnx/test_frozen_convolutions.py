"""Convolutions with frozen weights: as exact as sums of f32 are, whatever the channels, windows, strides and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper

import weft.onnx
from weft.config import Config
from weft.ops.windows.convolution import Convolution, plain_params
from weft.testing.kernels import plainer_processors
from weft.testing.onnx_models import info, model


@dataclass(frozen=True)
class Case:
    """A convolution by square windows of an image of these sides, `pads` on its four sides."""

    channels: int
    outputs: int
    sides: tuple[int, int]
    window: int = 1
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __str__(self) -> str:
        high, wide = self.sides
        return f"{self.channels}to{self.outputs}-{high}x{wide}-{self.window}w{self.stride}s{self.dilation}d"


AROUND = (1, 1, 1, 1)
CASES = [
    Case(3, 20, (31, 30), 7, 2, pads=(3, 2, 3, 3)),  # short runs of memory, read where they lie or copied
    Case(2, 33, (9, 40), 5, 1, pads=(2, 2, 2, 2)),
    Case(150, 170, (5, 14), 3, pads=AROUND),  # weights that leave the cache: a row of an image is a block, or copied
    Case(150, 170, (6, 7), 3, pads=AROUND),
    Case(150, 170, (4, 29), 3, 2, pads=(0, 1, 1, 0)),
    Case(150, 170, (7, 18), 3, dilation=2, pads=(2, 2, 2, 2)),
    Case(40, 70, (3, 15), 3, pads=AROUND),
    Case(512, 50, (3, 9)),  # rows of memory that share sets of a cache
    Case(1024, 33, (4, 8)),
    Case(1024, 33, (4, 8), stride=2),
    Case(70, 49, (7, 7)),
]


@pytest.mark.parametrize("cpu", ["native", *plainer_processors()])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_agree_with_float64(case: Case, cpu: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, case.channels, *case.sides), np.float32)
    w = rng.standard_normal((case.outputs, case.channels, case.window, case.window), np.float32)
    top, left, bottom, right = case.pads
    params = plain_params() | {
        "strides": (case.stride, case.stride),
        "dilation": (case.dilation, case.dilation),
        "padding": ((top, bottom), (left, right)),
    }
    expected = Convolution.reference(x.astype(np.float64), w.astype(np.float64), **params)
    other = rng.standard_normal(expected.shape, np.float32)
    attributes: dict[str, Any] = {
        "strides": [case.stride] * 2,
        "dilations": [case.dilation] * 2,
        "pads": list(case.pads),
        "kernel_shape": [case.window] * 2,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], **attributes),
        helper.make_node("Add", ["c", "other"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = [info(name, array.shape, TensorProto.FLOAT) for name, array in (("x", x), ("other", other))]
    made = model(nodes, inputs, [info("y", None, TensorProto.FLOAT)], {"w": w})
    (found,) = weft.onnx.load(made, config=Config.from_options({"cpu": cpu}))(x, other)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, np.maximum(expected + other, 0), rtol=0, atol=3e-6 * scale)
