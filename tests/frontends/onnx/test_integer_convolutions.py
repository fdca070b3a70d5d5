"""Products of codes: exact whatever the channels, the window and where zeros are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper

import weft.onnx
from weft.testing.onnx_models import info, model


@pytest.mark.parametrize(
    ("channels", "window", "dilation", "weights", "known"),
    [
        (19, 3, 1, np.uint8, False),
        (19, 3, 1, np.int8, True),
        (20, 3, 2, np.uint8, True),
        (33, 3, 2, np.uint8, False),
        (34, 2, 1, np.int8, False),
        (3, 5, 1, np.uint8, True),
    ],
)
def test_convolutions_of_codes_are_exact(channels: int, window: int, dilation: int, weights: Any, known: bool) -> None:
    """Channels need not be as many as are multiplied at a time."""
    rng = np.random.default_rng(channels)
    about = np.iinfo(weights)
    x = rng.integers(0, 256, (2, channels, 9, 11)).astype(np.uint8)
    w = rng.integers(about.min, about.max + 1, (21, channels, window, window)).astype(weights)
    place, middle = np.array(113, np.uint8), np.array(125 if weights == np.uint8 else 0, weights)
    node = helper.make_node(
        "ConvInteger", ["x", "w", "z", "m"], ["y"], pads=[1, 0, 1, 2], strides=[1, 2], dilations=[dilation, dilation]
    )
    arrays = {"w": w, "m": middle} | ({"z": place} if known else {})
    inputs = [info("x", x.shape, TensorProto.UINT8), *([] if known else [info("z", (), TensorProto.UINT8)])]
    found = weft.onnx.load(model([node], inputs, [info("y", None, TensorProto.INT32)], arrays))
    (y,) = found(x) if known else found(x, place)
    images = np.pad(x.astype(np.int64) - 113, ((0, 0), (0, 0), (1, 1), (0, 2)))
    reach = (window - 1) * dilation + 1
    slid = np.lib.stride_tricks.sliding_window_view(images, (reach, reach), (2, 3))[
        :, :, :, ::2, ::dilation, ::dilation
    ]
    expected = np.einsum("nchwij,ocij->nohw", slid, w.astype(np.int64) - int(middle))
    np.testing.assert_array_equal(y, expected)
