"""Products of codes: exact whatever the channels, the window and where zeros are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper

import weft.onnx
from weft.config import Config
from weft.testing.kernels import plainer_processors
from weft.testing.onnx_models import info, model

PADS = (1, 0, 1, 2)


@dataclass(frozen=True)
class Case:
    """A convolution of codes; `known` says that the zero of x is a constant, `each` that every channel has its own."""

    channels: int
    window: int = 3
    dilation: int = 1
    groups: int = 1
    x: Any = np.uint8
    w: Any = np.uint8
    known: bool = True
    each: bool = False
    extreme: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("known", "each", "extreme") if getattr(self, name)]
        types = f"{np.dtype(self.x)}x{np.dtype(self.w)}"
        return "-".join([f"{self.channels}c{self.window}w{self.dilation}d{self.groups}g", types, *flags])


CASES = [
    Case(19, known=False),
    Case(19, w=np.int8),
    Case(20, dilation=2),
    Case(33, dilation=2, known=False),
    Case(34, 2, w=np.int8, known=False),
    Case(3, 5),
    Case(19, x=np.int8, each=True),
    Case(20, x=np.int8, w=np.int8, known=False, each=True),
    Case(36, x=np.int8, w=np.int8, extreme=True),
    Case(35, each=True, extreme=True),
    Case(35, 1, x=np.int8, w=np.uint8, known=False, extreme=True),
    Case(14, groups=7, each=True),
    Case(12, groups=3, x=np.int8, w=np.int8, known=False, extreme=True),
    Case(7, groups=7, w=np.int8, extreme=True),
]


def random_codes(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], extreme: bool = False) -> np.ndarray:
    """Codes from the whole range of a type, or the least and the largest alone."""
    about = np.iinfo(dtype)
    chosen = rng.choice([about.min, about.max], shape) if extreme else rng.integers(about.min, about.max + 1, shape)
    return chosen.astype(dtype)


def convolved(x: np.ndarray, w: np.ndarray, dilation: int, groups: int) -> np.ndarray:
    """The sums of numbers less their zeros, with the padding and the strides of all cases."""
    images = np.pad(x, ((0, 0), (0, 0), (PADS[0], PADS[2]), (PADS[1], PADS[3])))
    reach = (w.shape[2] - 1) * dilation + 1
    slid = np.lib.stride_tricks.sliding_window_view(images, (reach, reach), (2, 3))
    slid = slid[:, :, :, ::2, ::dilation, ::dilation]
    parts = zip(np.split(slid, groups, 1), np.split(w, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", part, weights) for part, weights in parts], 1)


def check(case: Case, cpu: str = "native") -> None:
    rng = np.random.default_rng(case.channels)
    outputs = 3 * case.groups if case.groups > 1 else 21
    x = random_codes(rng, case.x, (2, case.channels, 9, 11), case.extreme)
    shape = (outputs, case.channels // case.groups, case.window, case.window)
    w = random_codes(rng, case.w, shape, case.extreme)
    place = np.array(113, case.x)
    middle = np.array(125 if case.w == np.uint8 else 0, case.w)
    if case.each:
        middle = random_codes(rng, case.w, (outputs,), case.extreme)
    attributes = {"pads": PADS, "strides": [1, 2], "dilations": [case.dilation] * 2, "group": case.groups}
    node = helper.make_node("ConvInteger", ["x", "w", "z", "m"], ["y"], **attributes)
    arrays = {"w": w, "m": middle} | ({"z": place} if case.known else {})
    code = TensorProto.UINT8 if case.x == np.uint8 else TensorProto.INT8
    inputs = [info("x", x.shape, code), *([] if case.known else [info("z", (), code)])]
    proto = model([node], inputs, [info("y", None, TensorProto.INT32)], arrays)
    found = weft.onnx.load(proto, config=Config.from_options({"cpu": cpu}))
    (y,) = found(x) if case.known else found(x, place)
    weights = w.astype(np.int64) - middle.astype(np.int64).reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(y, convolved(x.astype(np.int64) - 113, weights, case.dilation, case.groups))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_of_codes_are_exact(case: Case) -> None:
    """Channels need not be as many as are multiplied at a time."""
    check(case)


@pytest.mark.parametrize("case", [CASES[0], CASES[7], CASES[9]], ids=str)
@pytest.mark.parametrize("cpu", plainer_processors())
def test_convolutions_of_codes_are_exact_without_an_instruction_for_four(case: Case, cpu: str) -> None:
    check(case, cpu)
