"""Casts of clamped floats are what a cast of any float gives, with fewer instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest

from weft.config import Config
from weft.frontends.text import compile_function
from weft.ir.types import DType, Tensor, f32, f64, i8, i16, i32, u8, u16
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.runtime.record import recording
from weft.tile.text import print_program

VALUES = [0.0, -0.0, 0.5, 1.5, -1.5, 127.5, 128, 254.5, 255.5, 256, 1e9, -1e9, 3e38, np.inf, -np.inf, np.nan, 40000, 7]


def compiled(source: DType, target: DType, low: float, high: float) -> tuple[np.ndarray, np.ndarray, str]:
    """What clamping and casting gives, the numbers that NumPy clamps to, and the code."""
    rng = np.random.default_rng(0)
    values = np.concatenate([np.asarray(VALUES), rng.normal(0, 200, 77)]).astype(source.numpy)
    function = FuncOp.make("f", {"x": Tensor(source, values.shape)})
    b = GraphBuilder(function.block)
    clamped = b.clamp(b.round(function.block.args[0]), low=low, high=high)
    b.insert(ReturnOp.make([b.cast(clamped, dtype=target)]))
    with recording(programs=True) as records:
        made = compile_function(function, text=print_program(function), config=Config(cache=False), threads=1)
        (found,) = made(values)
    wanted = np.where(np.isnan(values), 0, np.clip(np.round(values), low, high))
    return found, wanted, str(records[0].programs["llvm"])


@pytest.mark.parametrize(
    ("source", "target", "low", "high"),
    [(f32, u8, 0, 255), (f32, i8, -128, 127), (f64, u8, 3, 200), (f32, u16, 0, 65535), (f64, i16, -32768, 32767)],
)
def test_the_integers_are_those_of_numpy(source: DType, target: DType, low: float, high: float) -> None:
    found, wanted, code = compiled(source, target, low, high)
    assert found.dtype == target.numpy
    np.testing.assert_array_equal(found, wanted)
    comparisons, conversions = (len(re.findall(rf"= {word} ", code)) for word in (r"fcmp \w+", "fptosi"))
    assert 0 < comparisons <= 3 * conversions, "one for each limit, and one for NaN"


@pytest.mark.parametrize(("target", "low", "high"), [(u8, -3, 255), (i8, 0, 200), (i32, -100, 100)])
def test_limits_outside_of_the_integers_saturate_or_wrap_as_ever(target: DType, low: float, high: float) -> None:
    found, wanted, _ = compiled(f32, target, low, high)
    inside = (wanted >= np.iinfo(target.numpy).min) & (wanted <= np.iinfo(target.numpy).max)
    np.testing.assert_array_equal(found[inside], wanted[inside])
