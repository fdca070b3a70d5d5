"""Convolutions and pooling as tile kernels: products of windows, and reductions over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.expr import Size, symbol
from weft.ir.types import DType, Tensor, bf16, f32
from weft.lower.dispatch import lower
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, packable
from weft.lower.refusal import Refusal
from weft.lower.schedule.schedule import Blocks
from weft.ops.layouts import contiguous
from weft.ops.windows.convolution import Convolution, plain_params
from weft.ops.windows.pool import MaxPool
from weft.testing.kernels import CpuModule, Symbols, Trial, group_of, run_interpreted

RNG = np.random.default_rng(7)


def geometry(**changes: Any) -> dict[str, Any]:
    return plain_params() | changes


PADDED = ((1, 1), (2, 0))
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("plain", (2, 5, 9, 11), (8, 5, 3, 2), geometry()),
    ("padded", (1, 4, 8, 40), (9, 4, 3, 3), geometry(padding=PADDED)),
    ("strided", (2, 3, 13, 41), (16, 3, 5, 5), geometry(strides=(2, 2), padding=((2, 2), (2, 2)))),
    ("dilated", (1, 4, 11, 12), (8, 4, 3, 3), geometry(dilation=(2, 3), padding=((2, 2), (3, 3)))),
    ("grouped", (2, 6, 7, 7), (16, 3, 3, 3), geometry(groups=2, padding=PADDED)),
    ("pointwise", (2, 12, 6, 7), (10, 12, 1, 1), geometry()),
    ("pointwise, strided", (2, 12, 6, 7), (10, 12, 1, 1), geometry(strides=(2, 1))),
    ("few windows", (5, 6, 4, 4), (8, 6, 3, 3), geometry()),
    ("few windows, grouped", (3, 8, 5, 5), (16, 4, 3, 3), geometry(groups=2, strides=(2, 2))),
    ("depthwise", (1, 3, 5, 40), (3, 1, 3, 3), geometry(groups=3, padding=((1, 1), (1, 1)))),
    ("transposed", (2, 5, 6, 7), (5, 9, 3, 3), geometry(padding=PADDED, transposed=True)),
    ("transposed, strided", (1, 4, 5, 20), (4, 8, 3, 3), geometry(strides=(2, 2), padding=PADDED, transposed=True)),
    ("transposed, grouped", (2, 4, 3, 3), (4, 8, 2, 2), geometry(groups=2, strides=(2, 1), transposed=True)),
    ("transposed, few", (3, 4, 2, 2), (4, 8, 2, 2), geometry(transposed=True, output_padding=(0, 0))),
    ("transposed, few channels", (1, 3, 3, 4), (3, 2, 3, 3), geometry(strides=(2, 2), transposed=True)),
    ("no rows", (0, 3, 5, 5), (8, 3, 3, 3), geometry()),
]


def convolved(x: tuple[Size, ...], w: tuple[int, ...], params: dict[str, Any], dtype: DType = f32) -> Trial:
    group = group_of([Tensor(dtype, x), Tensor(dtype, w)], lambda b, x, w: b.convolution(x, w, **params))
    return Trial.of(group, "convolution")


def check(trial: Trial, arrays: list[np.ndarray], expected: np.ndarray, symbols: Symbols | None = None) -> None:
    bound = 2e-6 * np.abs(expected).max(initial=1.0)
    for (y,) in (CpuModule([trial]).run(trial, arrays, symbols), run_interpreted(trial, arrays, symbols)):
        np.testing.assert_allclose(y, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(("x", "w", "params"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_convolutions_agree_with_float64(x: tuple[int, ...], w: tuple[int, ...], params: dict[str, Any]) -> None:
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in (x, w)]
    expected = Convolution.reference(*(array.astype(np.float64) for array in arrays), **params)
    check(convolved(x, w, params), arrays, expected)


def test_a_symbolic_batch_and_height() -> None:
    params = geometry(padding=PADDED, strides=(1, 2))
    trial = convolved((symbol("n"), 4, symbol("h"), 17), (8, 4, 3, 3), params)
    w = RNG.standard_normal((8, 4, 3, 3)).astype(np.float32)
    for rows, height in ((1, 6), (3, 9)):
        x = RNG.standard_normal((rows, 4, height, 17)).astype(np.float32)
        expected = Convolution.reference(x.astype(np.float64), w.astype(np.float64), **params)
        check(trial, [x, w], expected, {"n": rows, "h": height})


@pytest.mark.parametrize("x", [(2, 4, 7, 9), (4, 4, 3, 4)], ids=["batched", "side by side"])
def test_what_follows_joins_the_product(x: tuple[int, ...]) -> None:
    def body(b: Any, x: Any, w: Any, bias: Any) -> Any:
        y = b.convolution(b.neg(x), w, **geometry(padding=((1, 1), (1, 1))))
        return b.relu(b.add(y, b.reshape(bias, shape=(8, 1, 1))))

    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in (x, (8, 4, 3, 3), (8,))]
    trial = Trial.of(group_of([Tensor(f32, a.shape) for a in arrays], body), "convolution")
    wide = [array.astype(np.float64) for array in arrays]
    y = Convolution.reference(-wide[0], wide[1], **geometry(padding=((1, 1), (1, 1))))
    check(trial, arrays, np.maximum(y + wide[2].reshape(8, 1, 1), 0))


def test_narrow_floats_are_summed_in_f32() -> None:
    arrays = [RNG.standard_normal(shape).astype(bf16.numpy) for shape in ((1, 32, 6, 6), (8, 32, 3, 3))]
    trial = convolved((1, 32, 6, 6), (8, 32, 3, 3), geometry(), bf16)
    expected = Convolution.reference(*(array.astype(np.float64) for array in arrays), **geometry())
    (y,) = CpuModule([trial]).run(trial, arrays)
    assert np.abs(y.astype(np.float64) - expected).max() <= 2**-8 * np.abs(expected).max()


@pytest.mark.parametrize("width", [6, 40, 100])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pooled_rows_are_vectors(width: int, stride: int) -> None:
    params: dict[str, Any] = {
        "window": (3, 3),
        "strides": (stride, stride),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    x = RNG.standard_normal((2, 7, width)).astype(np.float32)
    trial = Trial.of(group_of([Tensor(f32, x.shape)], lambda b, x: b.max_pool(x, **params)), "pool")
    assert str(trial.lowered.calls[0].kernel.schedule).startswith("#taps<r2")
    check(trial, [x], MaxPool.reference(x, **params))


def test_rows_of_windows_with_the_same_packed_weights_are_neighbours() -> None:
    """All rows of an image are multiplied by one block of columns before the next, so that it stays in a cache."""

    def body(b: Any, x: Any, w: Any) -> Any:
        windows = b.windows(x, window=(3, 3), strides=(1, 1), dilation=(1, 1))
        return b.dot(b.reshape(windows, shape=(6 * 14, 9 * 32)), w)

    group = group_of([Tensor(f32, (1, 8, 16, 32)), Tensor(f32, (9 * 32, 128))], body)
    packing = packable(group, 32)
    assert packing is not None
    layouts = [contiguous(Tensor(f32, (1, 8, 16, 32))), PackedLayout.of(packing.panels)]
    lowered = lower(group, "windows", layouts, [contiguous(Tensor(f32, (6 * 14, 128)))], Machine(product_rows=14))
    assert not isinstance(lowered, Refusal)
    kernel = lowered.calls[0].kernel
    assert isinstance(kernel.schedule, Blocks)
    rows, columns, _ = kernel.schedule.sides
    blocks = [size for size in (-(-128 // columns), 6, -(-14 // rows)) if size > 1]
    assert len(blocks) >= 2
    assert [size for size in kernel.op.grid.data if size != 1] == blocks
