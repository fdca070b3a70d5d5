"""Convolution, pooling, resizing and sampling agree with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.ir.types import Tensor, dtype_of_numpy
from weft.ops import composites
from weft.ops.base import REGISTRY
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.windows.window import ceil_extension

torch = pytest.importorskip("torch")
functional: Any = torch.nn.functional


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def evaluated(build: Callable[[GraphBuilder, SSAValue], SSAValue], x: np.ndarray) -> np.ndarray:
    """The result of a composite on one array."""
    function = FuncOp.make("main", {"x": Tensor(dtype_of_numpy(x.dtype), x.shape)})
    builder = GraphBuilder(function.block)
    function.block.add_op(ReturnOp.make([build(builder, function.block.args[0])]))
    function.verify()
    return run(function, [x])[0]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rank", "groups"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_convolution_is_torchs(rng: np.random.Generator, rank: int, groups: int, transposed: bool) -> None:
    x = rng.standard_normal((2, 4, *(7, 6, 5)[:rank]))
    w = rng.standard_normal((4, 6 // groups if transposed else 4 // groups, *(3, 2, 3)[:rank]))
    strides, low, dilation = (2, 1, 2)[:rank], (1, 0, 2)[:rank], (1, 2, 1)[:rank]
    extra = (1, 0, 1)[:rank] if transposed else (0,) * rank
    arguments = (torch.from_numpy(x), torch.from_numpy(w), None, strides, low, dilation, transposed, extra, groups)
    expected = torch.ops.aten.convolution(*arguments).numpy()
    actual = REGISTRY["convolution"].cls.reference(
        x,
        w,
        strides=strides,
        padding=tuple((p, p) for p in low),
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=extra,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("window", "stride", "pad", "dilation"), [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (2, 3, 1, 1)]
)
def test_max_pool_is_torchs(
    rng: np.random.Generator, window: int, stride: int, pad: int, dilation: int, ceil_mode: bool
) -> None:
    x = rng.integers(-3, 3, (2, 3, 8, 9)).astype(np.float64)
    x[0, 0, 2, 3] = np.nan
    x[1, 1] = -np.inf
    pair = (window, window), (stride, stride), (pad, pad), (dilation, dilation)
    expected = torch.ops.aten.max_pool2d_with_indices(torch.from_numpy(x), *pair, ceil_mode)
    params = {
        "window": (window, window),
        "strides": (stride, stride),
        "padding": tuple(
            (pad, pad + (ceil_extension(size, window, stride, (pad, pad), dilation) if ceil_mode else 0))
            for size in (8, 9)
        ),
        "dilation": (dilation, dilation),
    }
    np.testing.assert_array_equal(REGISTRY["max_pool"].cls.reference(x, **params), expected[0].numpy())
    np.testing.assert_array_equal(REGISTRY["max_pool_indices"].cls.reference(x, **params), expected[1].numpy())


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
@pytest.mark.parametrize(("window", "stride", "pad"), [(3, 2, 1), (2, 2, 0), (3, 3, 1), (4, 3, 2)])
def test_avg_pool_is_torchs(
    rng: np.random.Generator,
    window: int,
    stride: int,
    pad: int,
    divisor: int | None,
    count_include_pad: bool,
    ceil_mode: bool,
) -> None:
    x = rng.standard_normal((2, 3, 8, 9))
    rest = (ceil_mode, count_include_pad, divisor)
    expected = functional.avg_pool2d(torch.from_numpy(x), window, stride, pad, *rest).numpy()
    geometry = (window, window), (stride, stride), ((pad, pad), (pad, pad))
    actual = evaluated(lambda b, x: composites.avg_pool(b, x, *geometry, *rest), x)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 8), (9, 12)])
def test_adaptive_avg_pool_is_torchs(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    x = rng.standard_normal((2, 3, 7, 6))
    expected = functional.adaptive_avg_pool2d(torch.from_numpy(x), shape).numpy()
    actual = evaluated(lambda b, x: composites.adaptive_avg_pool(b, x, shape), x)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(4, 9), (14, 12), (3, 7), (1, 1)])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "name"), [("bilinear", "resize_linear"), ("bicubic", "resize_cubic")])
def test_interpolation_is_torchs(
    rng: np.random.Generator, mode: str, name: str, align_corners: bool, shape: tuple[int, int]
) -> None:
    x = rng.standard_normal((2, 3, 7, 6))
    expected = functional.interpolate(torch.from_numpy(x), shape, mode=mode, align_corners=align_corners).numpy()
    params: dict[str, Any] = {"coordinates": "align_corners" if align_corners else "half_pixel"}
    if mode == "bicubic":
        params["coefficient"] = -0.75
    actual = REGISTRY[name].cls.reference(x, shape=shape, scales=(None, None), **params)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [(2.0, 2.0), (1.7, 0.6), (0.5, 3.3)])
def test_interpolation_by_scales_is_torchs(rng: np.random.Generator, scale: tuple[float, float]) -> None:
    x = rng.standard_normal((2, 3, 7, 6))
    source = torch.from_numpy(x)
    for mode, name, params in [
        ("nearest", "resize_nearest", {"coordinates": "asymmetric", "rounding": "floor"}),
        ("nearest-exact", "resize_nearest", {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"}),
        ("bilinear", "resize_linear", {"coordinates": "half_pixel"}),
    ]:
        expected = functional.interpolate(source, scale_factor=scale, mode=mode).numpy()
        actual = REGISTRY[name].cls.reference(x, shape=expected.shape[2:], scales=scale, **params)
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10, err_msg=mode)


@pytest.mark.parametrize("count", [1, 2, 5, 7, 14, 21, 41, 49, 287])
def test_nearest_is_torchs_at_all_sizes(rng: np.random.Generator, count: int) -> None:
    x = rng.standard_normal((1, 1, 7)).astype(np.float32)
    for mode, coordinates, rounding in [
        ("nearest", "asymmetric", "floor"),
        ("nearest-exact", "half_pixel", "round_prefer_ceil"),
    ]:
        expected = functional.interpolate(torch.from_numpy(x), count, mode=mode).numpy()
        params = {"shape": (count,), "scales": (None,), "coordinates": coordinates, "rounding": rounding}
        np.testing.assert_array_equal(REGISTRY["resize_nearest"].cls.reference(x, **params), expected)


@pytest.mark.parametrize(("mode", "of_torch"), [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_pad_mode_is_torchs(rng: np.random.Generator, mode: str, of_torch: str) -> None:
    x = rng.standard_normal((2, 3, 5, 6))
    expected = functional.pad(torch.from_numpy(x), (1, 4, 2, 3), mode=of_torch).numpy()
    actual = REGISTRY["pad_mode"].cls.reference(x, low=(0, 0, 2, 1), high=(0, 0, 3, 4), mode=mode)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "of_torch", "rank"),
    [("linear", "bilinear", 2), ("nearest", "nearest", 2), ("cubic", "bicubic", 2), ("linear", "bilinear", 3)],
)
def test_grid_sample_is_torchs(
    rng: np.random.Generator, mode: str, of_torch: str, rank: int, padding: str, align_corners: bool
) -> None:
    x = rng.standard_normal((2, 3, *(5, 6, 1)[:rank]))
    grid = rng.uniform(-3, 3, (2, *(4, 7, 2)[:rank], rank))
    arguments = torch.from_numpy(x), torch.from_numpy(grid), of_torch, padding, align_corners
    expected = functional.grid_sample(*arguments).numpy()
    params = {"mode": mode, "padding": padding, "align_corners": align_corners}
    actual = REGISTRY["grid_sample"].cls.reference(x, grid, **params)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)
