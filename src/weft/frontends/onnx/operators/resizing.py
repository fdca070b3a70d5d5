"""Resize and Upsample: along each dimension every result is a weighted sum of a few elements, all known at import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ModelError, ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.movement import lifted
from weft.frontends.onnx.operators.shapes import checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ops.composites import narrowed, widened


@dataclass(frozen=True)
class Axis:
    """How one dimension is resized: from `size` elements to `count`, `scale` times as many, from a part of them."""

    size: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def places(self, mode: str) -> np.ndarray:
        """Where the results lie among the elements."""
        i = np.arange(self.count, dtype=np.float64)
        match mode:
            case "half_pixel":
                return (i + 0.5) / self.scale - 0.5
            case "half_pixel_symmetric":
                adjusted = self.count / (self.scale * self.size) if self.size else 1.0
                center = self.size / 2
                return center * (1 - adjusted) + (i + 0.5) / self.scale - 0.5
            case "pytorch_half_pixel":
                return (i + 0.5) / self.scale - 0.5 if self.count > 1 else np.zeros(self.count)
            case "align_corners":
                whole = self.scale * self.size
                return i * (self.size - 1) / (whole - 1) if whole > 1 else np.zeros(self.count)
            case "asymmetric":
                return i / self.scale
            case "tf_half_pixel_for_nn":
                return (i + 0.5) / self.scale
            case "tf_crop_and_resize":
                first = self.start * (self.size - 1)
                if self.count > 1:
                    return first + i * (self.end - self.start) * (self.size - 1) / (self.count - 1)
                return np.full(self.count, 0.5 * (self.start + self.end) * (self.size - 1))
            case _:
                raise ModelError(f"there is no coordinate transformation {mode!r}")


def _kernel(mode: str, distance: np.ndarray, coefficient: float) -> np.ndarray:
    """The weight of an element at a distance."""
    x = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - x, 0)
    a = coefficient
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def taps(axis: Axis, mode: str, transform: str, coefficient: float, outside: bool, smooth: bool) -> Any:
    """For each result the elements that count, and their weights: two arrays of [results, elements]."""
    places = axis.places(transform)
    shrink = min(axis.scale, 1.0) if smooth else 1.0
    radius = (1 if mode == "linear" else 2) / shrink
    width = math.ceil(2 * radius) + 1
    first = np.ceil(places - radius).astype(np.int64)
    elements = first[:, None] + np.arange(width)
    weights = _kernel(mode, (elements - places[:, None]) * shrink, coefficient)
    if outside:
        weights = np.where((elements < 0) | (elements >= axis.size), 0, weights)
    total = weights.sum(1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    used = np.abs(weights).max(0) > 0
    return np.clip(elements, 0, axis.size - 1)[:, used], weights[:, used]


def nearest(axis: Axis, transform: str, rounding: str) -> np.ndarray:
    """For each result the element that it is."""
    places = axis.places(transform)
    match rounding:
        case "round_prefer_floor":
            whole = np.ceil(places - 0.5)
        case "round_prefer_ceil":
            whole = np.floor(places + 0.5)
        case "floor":
            whole = np.floor(places)
        case "ceil":
            whole = np.ceil(places)
        case _:
            raise ModelError(f"there is no rounding {rounding!r}")
    return np.clip(whole, 0, axis.size - 1).astype(np.int64)


def resized(c: Call, axes: dict[int, Axis], mode: str, transform: str) -> SSAValue:
    """The first input, one dimension after the other."""
    x = c.x(0)
    dtype = c.b.tensor(x).dtype
    value = widened(c.b, x)
    if not dtype.is_float and mode != "nearest":
        value = c.b.cast(x, dtype=c.kernel_type(np.dtype(np.float32)))
    for dim, axis in axes.items():
        if mode == "nearest":
            places = nearest(axis, transform, c.string("nearest_mode", _rounding(c)))
            value = c.b.take(value, lifted(c, places), dim=dim)
            continue
        coefficient, outside = c.float("cubic_coeff_a", -0.75), c.flag("exclude_outside")
        elements, weights = taps(axis, mode, transform, coefficient, outside, c.flag("antialias"))
        value = _weighted(c, value, dim, elements, weights)
    if transform == "tf_crop_and_resize":
        value = _outside(c, value, axes)
    if not dtype.is_float and mode != "nearest":
        value = c.b.round(value)
    return narrowed(c.b, value, dtype)


def _rounding(c: Call) -> str:
    return "round_prefer_floor" if c.version >= 11 else "floor"


def _weighted(c: Call, x: SSAValue, dim: int, elements: np.ndarray, weights: np.ndarray) -> SSAValue:
    rank, dtype = c.b.tensor(x).rank, c.b.tensor(x).dtype
    total: SSAValue | None = None
    for places, factors in zip(elements.T, weights.T, strict=True):
        shape = tuple(len(factors) if d == dim else 1 for d in range(rank))
        factor = lifted(c, np.ascontiguousarray(factors, dtype.numpy).reshape(shape))
        part = c.b.mul(c.b.take(x, lifted(c, np.ascontiguousarray(places)), dim=dim), factor)
        total = part if total is None else c.b.add(total, part)
    return x if total is None else total


def _outside(c: Call, x: SSAValue, axes: dict[int, Axis]) -> SSAValue:
    """Places beyond the elements get a number."""
    shape = static(c.b.tensor(x))
    for dim, axis in axes.items():
        places = axis.places("tf_crop_and_resize")
        inside = (places >= 0) & (places <= axis.size - 1)
        if not inside.all():
            mask = lifted(c, inside.reshape([len(inside) if d == dim else 1 for d in range(len(shape))]))
            x = c.b.where(mask, x, c.b.full_like(x, c.float("extrapolation_value", 0.0)))
    return x


@onnx_op("Resize", since=11)
def resize(c: Call) -> Any:
    sizes = c.shape(0)
    dims = c.axes(c.ints("axes"), len(sizes)) if c.given("axes") else tuple(range(len(sizes)))
    transform = c.string("coordinate_transformation_mode", "half_pixel")
    roi = c.known(1).astype(np.float64).reshape(-1).tolist() if transform == "tf_crop_and_resize" else []
    if c.has(3) and math.prod(c.shape(3)):
        counts = list(c.known_ints(3))
        scales = [count / sizes[d] for count, d in zip(counts, dims, strict=True)]
        policy = c.string("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * len(dims)
            counts = [math.floor(scale * sizes[d] + 0.5) for d in dims]
    elif c.has(2):
        scales = [float(each) for each in c.known(2).reshape(-1)]
        if len(scales) != len(dims):
            raise ShapeError(f"{c.node}: there are {len(scales)} scales, expected {len(dims)}")
        counts = [math.floor(sizes[d] * scale) for d, scale in zip(dims, scales, strict=True)]
    else:
        raise ModelError(f"{c.node} has neither scales nor sizes")
    return _of(c, dims, counts, scales, roi, transform)


def _of(
    c: Call, dims: Sequence[int], counts: Sequence[int], scales: Sequence[float], roi: list[float], transform: str
) -> Any:
    sizes = c.shape(0)
    if any(scale <= 0 for scale in scales):
        raise ShapeError(f"{c.node}: scales are {list(scales)}, expected numbers above 0")
    checked_shape(c, counts)
    axes: dict[int, Axis] = {}
    for n, d in enumerate(dims):
        start, end = (roi[n], roi[n + len(dims)]) if roi else (0.0, 1.0)
        if counts[n] != sizes[d] or scales[n] != 1 or (roi and (start, end) != (0.0, 1.0)):
            axes[d] = Axis(sizes[d], counts[n], scales[n], start, end)
    mode = c.string("mode", "nearest").replace("bilinear", "linear")
    if mode not in ("nearest", "linear", "cubic"):
        raise ModelError(f"{c.node}: attribute 'mode' is {mode!r}, expected nearest, linear or cubic")
    return resized(c, axes, mode, transform)


@onnx_op("Resize", since=10)
@onnx_op("Upsample")
def upsample(c: Call) -> Any:
    sizes = c.shape(0)
    if c.given("scales"):
        scales = list(c.floats("scales"))
    elif c.given("height_scale"):
        scales = [1.0, 1.0, c.float("height_scale"), c.float("width_scale")]
    else:
        scales = [float(each) for each in c.known(1).reshape(-1)]
    counts = [math.floor(size * scale) for size, scale in zip(sizes, scales, strict=True)]
    dims = tuple(range(len(sizes)))
    return _of(c, dims, counts, scales, [], "asymmetric")
