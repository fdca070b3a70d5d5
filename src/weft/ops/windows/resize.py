"""Resizing of the last dimensions: every result is a weighted sum of a few elements around its place in the operand.

Where that is, `coordinates` says, with s the operand's size over the result's (or 1 / scale, where `scales` has one):

    half_pixel      (i + 0.5) * s - 0.5             asymmetric      i * s
    align_corners   i * (size - 1) / (count - 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Expr, Size, floordiv, product
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, f32, f64, i64
from weft.ops.base import Movement, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, iota, move_dim
from weft.ops.samples import Input, Sample
from weft.ops.windows.interpolation import Arithmetic, cubic_weights

COORDINATES = ("half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
Scales = tuple[float | None, ...]


def _samples(*variants: dict[str, Any]) -> list[Sample]:
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], Scales], ...] = (
        ((2, 5), (8,), (None,)),
        ((2, 3, 4, 6), (8, 3), (None, None)),
        ((1, 5, 7), (1, 9), (None, 1.3)),
        ((2, 3, 2), (3, 2, 4), (None, None, None)),
    )
    return [
        Sample((Input(x),), {"shape": shape, "scales": scales, **variant}, (f32, bf16))
        for variant in variants
        for x, shape, scales in cases
    ]


@dataclass(frozen=True)
class Axis:
    """How one dimension is resized: from `size` to `count`."""

    size: Size
    count: Size
    scale: float | None
    coordinates: str

    def step(self, body: Body, dtype: DType) -> Value:
        """How far the place in the operand moves from one result to the next."""
        if isinstance(self.size, int) and isinstance(self.count, int):
            return body.constant(float(self.fixed_step(dtype)), dtype)
        if self.coordinates != "align_corners" and self.scale is not None:
            return body.constant(1 / self.scale, dtype)
        less = 1 if self.coordinates == "align_corners" else 0
        # With a single result there is no step, and the place is 0 whatever it is.
        intervals = body.math("max", body.position(self.count - less, dtype), body.constant(1, dtype))
        return body.math("div", body.position(self.size - less, dtype), intervals)

    def fixed_step(self, dtype: DType) -> Any:
        """`step` as a number, in the arithmetic of the type."""
        number: Any = dtype.numpy.type
        if self.coordinates == "align_corners":
            return number(self.size - 1) / number(self.count - 1) if self.count != 1 else number(0)
        return number(1 / self.scale) if self.scale is not None else number(self.size) / number(self.count)

    def place(self, body: Body, index: Size, dtype: DType, shift: float = 0) -> Value:
        """The place in the operand of the result at `index`, plus `shift`."""
        return self.place_of(body, body.position(index, dtype), dtype, shift)

    def place_of(self, body: Body, place: Value, dtype: DType, shift: float = 0) -> Value:
        """The same of an index that is a value."""
        if self.coordinates == "half_pixel":
            place = body.math("add", place, body.constant(0.5, dtype))
            shift -= 0.5
        place = body.math("mul", place, self.step(body, dtype))
        return place if shift == 0 else body.math("add", place, body.constant(shift, dtype))

    def places(self, dtype: DType, shift: float = 0) -> Any:
        """`place` of all results, in NumPy."""
        number: Any = dtype.numpy.type
        half = 0.5 if self.coordinates == "half_pixel" else 0
        assert isinstance(self.count, int), "references see numbers"
        index = np.arange(self.count).astype(number)
        return (index + number(half)) * self.fixed_step(dtype) + number(shift - half)


def axes(x: Tensor, shape: tuple[Size, ...], scales: Scales, coordinates: str) -> list[Axis]:
    """The dimensions that are resized."""
    sizes = x.shape[x.rank - len(shape) :]
    return [Axis(*line, coordinates) for line in zip(sizes, shape, scales, strict=True)]


def kept_inside(body: Body, value: Value, size: Size) -> Expr:
    """The element nearest to the place `value`, a float without a fraction."""
    last = body.position(size - 1, i64)
    inside = body.math("max", body.math("min", body.cast(value, i64), last), body.constant(0, i64))
    return body.index(inside, size)


def compute_dtype(dtype: DType) -> DType:
    """The type in which places and weights are computed."""
    return f64 if dtype == f64 else f32


class Resize(Movement):
    """A resizing to `shape`; results depend linearly on the operand, one dimension after the other."""

    FLOATS_ONLY: ClassVar[bool] = True

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape: tuple[Size, ...] = params["shape"]
        lead = x.rank - len(shape)
        if lead < 0 or len(params["scales"]) != len(shape) or 0 in x.shape[lead:]:
            raise ShapeError(f"{cls.name}: {x} cannot be resized to {shape} with scales {params['scales']}")
        if any(scale is not None and not 0 < scale < float("inf") for scale in params["scales"]):
            raise ShapeError(f"{cls.name}: scales of {params['scales']}, expected numbers above 0")
        if params["coordinates"] not in COORDINATES or params.get("rounding", "floor") not in ROUNDINGS:
            raise ShapeError(f"{cls.name}: coordinates are one of {COORDINATES}, roundings one of {ROUNDINGS}")
        if cls.FLOATS_ONLY and not x.dtype.is_float:
            raise DTypeError(f"{cls.name} takes floats, got {x}", hint="insert a cast")
        return Tensor(x.dtype, (*x.shape[:lead], *shape))

    @classmethod
    def batch(cls, b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        return b.emit(cls.name.removeprefix("graph."), operands[0], **params)

    @classmethod
    def vjp(
        cls,
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        shape: tuple[Size, ...],
        scales: Scales,
        **params: Any,
    ) -> Gradients:
        # Resizing the rows of the identity gives the weights of a dimension as a matrix.
        (g,), x = grads, b.tensor(operands[0])
        for d, scale in enumerate(scales, x.rank - len(shape)):
            row = iota(b, x.shape[d])
            ones = b.eq(b.reshape(row, shape=(x.shape[d], 1)), row)
            count = (b.tensor(g).shape[d],)
            name = cls.name.removeprefix("graph.")
            weights = b.emit(name, b.cast(ones, dtype=x.dtype), shape=count, scales=(scale,), **params)
            last = move_dim(b, g, d, x.rank - 1)
            *rest, length = b.tensor(last).shape
            rows = b.dot(b.reshape(last, shape=(product(rest), length)), b.permute(weights, dims=(1, 0)))
            g = move_dim(b, b.reshape(rows, shape=(*rest, x.shape[d])), x.rank - 1, d)
        return (g,)


def resize_reference(x: np.ndarray, taps: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]) -> np.ndarray:
    """Apply the taps (positions and weights) of each of the last dimensions."""
    for d, pairs in enumerate(taps, x.ndim - len(taps)):
        column = [-1 if other == d else 1 for other in range(x.ndim)]
        x = sum(
            (np.take(x, places, d) * weights.reshape(column) for places, weights in pairs),
            start=np.zeros((), x.dtype),
        )
    return x


def weighted(
    body: Body, x: Operand, index: Sequence[Size], taps: Sequence[Sequence[tuple[Size, Value]]], dtype: DType
) -> Value:
    """The sum of the elements at all combinations of the taps of the last dimensions, times their weights."""

    def total(place: list[Size], rest: Sequence[Sequence[tuple[Size, Value]]]) -> Value:
        if not rest:
            return body.cast(body.at(x, place), dtype)
        (position, weight), *others = rest[0]
        value = body.math("mul", weight, total([*place, position], rest[1:]))
        for position, weight in others:
            part = body.math("mul", weight, total([*place, position], rest[1:]))
            value = body.math("add", value, part)
        return value

    return body.cast(total(list(index[: len(index) - len(taps)]), taps), x.tensor.dtype)


@op(
    "resize_nearest",
    onnx="Resize",
    samples=_samples(
        {"coordinates": "asymmetric", "rounding": "floor"},
        {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"},
        {"coordinates": "align_corners", "rounding": "round_prefer_floor"},
        {"coordinates": "half_pixel", "rounding": "ceil"},
    ),
)
class ResizeNearest(Resize):
    """The element nearest to each place, which `rounding` decides. Places are computed in f32."""

    FLOATS_ONLY: ClassVar[bool] = False

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...], scales: Scales, coordinates: str, rounding: str) -> np.ndarray:
        shift, down = ROUND[rounding]
        for d, axis in enumerate(axes(_tensor(x), shape, scales, coordinates), x.ndim - len(shape)):
            places = (np.floor if down else np.ceil)(axis.places(f32, shift))
            x = np.take(x, np.clip(places.astype(np.int64), 0, x.shape[d] - 1), d)
        return x

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        shape: tuple[Size, ...],
        scales: Scales,
        coordinates: str,
        rounding: str,
    ) -> Value:
        lead = len(index) - len(shape)
        shift, down = ROUND[rounding]
        place = list(index[:lead])
        for i, axis in zip(index[lead:], axes(x.tensor, shape, scales, coordinates), strict=True):
            if (coordinates, rounding) == ("asymmetric", "floor") and _divides(axis):
                place.append(floordiv(i * axis.size, axis.count))
            else:
                value = axis.place(body, i, f32, shift)
                place.append(kept_inside(body, body.math("floor" if down else "ceil", value), axis.size))
        return body.at(x, place)


ROUND = {
    "floor": (0.0, True),
    "ceil": (0.0, False),
    "round_prefer_ceil": (0.5, True),
    "round_prefer_floor": (-0.5, False),
}


def _divides(axis: Axis) -> bool:
    """Whether places are exact in f32, so that integers may compute them: a whole step, or one over a power of two."""
    if axis.scale is not None or not (isinstance(axis.size, int) and isinstance(axis.count, int)):
        return False
    ratio, rest = divmod(axis.count, axis.size)
    return axis.size % axis.count == 0 or (rest == 0 and ratio & (ratio - 1) == 0)


def _tensor(x: np.ndarray) -> Tensor:
    return Tensor(dtype_of_numpy(x.dtype), x.shape)


@op(
    "resize_linear",
    onnx="Resize",
    samples=_samples(*({"coordinates": coordinates} for coordinates in COORDINATES)),
)
class ResizeLinear(Resize):
    """Linear interpolation between the elements around each place; places outside take the element at the edge."""

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, shape: tuple[int, ...], scales: Scales, coordinates: str) -> np.ndarray:
        taps: list[list[tuple[np.ndarray, np.ndarray]]] = []
        for axis in axes(_tensor(x), shape, scales, coordinates):
            last: Any = axis.size - 1
            place = np.clip(axis.places(dtype_of_numpy(x.dtype)), 0, last)
            below = np.floor(place).astype(np.int64)
            share = place - np.floor(place)
            taps.append([(below, 1 - share), (np.minimum(below + 1, last), share)])
        return resize_reference(x, taps)

    @staticmethod
    def pull(
        body: Body, index: Sequence[Size], x: Operand, shape: tuple[Size, ...], scales: Scales, coordinates: str
    ) -> Value:
        dtype = compute_dtype(x.tensor.dtype)
        one = body.constant(1, dtype)
        taps: list[list[tuple[Size, Value]]] = []
        for i, axis in zip(index[-len(shape) :], axes(x.tensor, shape, scales, coordinates), strict=True):
            last = body.position(axis.size - 1, dtype)
            place = body.math("min", body.math("max", axis.place(body, i, dtype), body.constant(0, dtype)), last)
            below = body.math("floor", place)
            share = body.math("sub", place, below)
            pair = [(below, body.math("sub", one, share)), (body.math("add", below, one), share)]
            taps.append([(kept_inside(body, position, axis.size), weight) for position, weight in pair])
        return weighted(body, x, index, taps, dtype)


@op(
    "resize_cubic",
    onnx="Resize",
    samples=_samples(*({"coordinates": coordinates, "coefficient": -0.75} for coordinates in COORDINATES)),
)
class ResizeCubic(Resize):
    """Cubic convolution of the four elements around each place; those outside are the element at the edge."""

    @staticmethod
    @rounded_once
    def reference(
        x: np.ndarray, shape: tuple[int, ...], scales: Scales, coordinates: str, coefficient: float
    ) -> np.ndarray:
        taps: list[list[tuple[np.ndarray, np.ndarray]]] = []
        for axis in axes(_tensor(x), shape, scales, coordinates):
            last: Any = axis.size - 1
            place = axis.places(dtype_of_numpy(x.dtype))
            below = np.floor(place).astype(np.int64)
            arithmetic = Arithmetic.of_numpy(dtype_of_numpy(x.dtype))
            weights = cubic_weights(arithmetic, place - np.floor(place), coefficient)
            taps.append([(np.clip(below + n - 1, 0, last), weight) for n, weight in enumerate(weights)])
        return resize_reference(x, taps)

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        shape: tuple[Size, ...],
        scales: Scales,
        coordinates: str,
        coefficient: float,
    ) -> Value:
        dtype = compute_dtype(x.tensor.dtype)
        taps: list[list[tuple[Size, Value]]] = []
        for i, axis in zip(index[-len(shape) :], axes(x.tensor, shape, scales, coordinates), strict=True):
            place = axis.place(body, i, dtype)
            below = body.math("floor", place)
            weights = cubic_weights(Arithmetic.of_body(body, dtype), body.math("sub", place, below), coefficient)
            positions = [body.math("add", below, body.constant(n, dtype)) for n in (-1, 0, 1, 2)]
            inside = [kept_inside(body, position, axis.size) for position in positions]
            taps.append(list(zip(inside, weights, strict=True)))
        return weighted(body, x, index, taps, dtype)
