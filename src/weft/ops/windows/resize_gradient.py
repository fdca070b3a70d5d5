"""The gradient of resizing along one dimension, gathered: each element adds up the results that were made of it.

Those follow each other, at most `_taps` of them. Where the first is comes from the inverse of the places that
`weft.ops.windows.resize` computes; what an element counts for in each, from the distance to the result's place:

    linear   1 - |place - i|, at least 0        nearest   1 where the place rounds to i
    cubic    the weights of those of the four elements around the place that are i, kept inside
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size, ceildiv, maximum, minimum
from weft.ir.types import DType, Tensor, bf16, f32, i64
from weft.ops.base import Reduction, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, move_dim
from weft.ops.samples import Input, Sample
from weft.ops.windows.convolution import in_f32
from weft.ops.windows.interpolation import Arithmetic, cubic_weights
from weft.ops.windows.resize import COORDINATES, ROUND, Axis, ResizeCubic, ResizeLinear, ResizeNearest, compute_dtype

KINDS = {"nearest": ResizeNearest, "linear": ResizeLinear, "cubic": ResizeCubic}
_REACH = {"nearest": 0, "linear": 1, "cubic": 2}
"""How far before an element the places lie of results that are made of it."""
_MARGIN, _EXACT = 1 / 64, 1 << 21
"""So that rounding finds no later first result than there is: an earlier one counts for nothing. Places of so many
results are off by less than one."""
_A = -0.75
"""How far the cubic filter goes below zero, unless a `coefficient` is given."""


def _samples() -> list[Sample]:
    cases: tuple[tuple[tuple[int, ...], int, int, float | None], ...] = (
        ((2, 9), 1, 4, None),
        ((3, 8, 2), 1, 2, None),
        ((2, 3, 5), 2, 7, None),
        ((7, 3), 0, 5, 1.5),
        ((4, 1), 1, 3, None),
    )
    return [
        Sample(
            (Input(x),), {"dim": dim, "size": size, "scale": scale, "kind": kind, "coordinates": coordinates}, dtypes
        )
        for x, dim, size, scale in cases
        for kind, coordinates, dtypes in (
            *(("linear", coordinates, (f32, bf16)) for coordinates in COORDINATES),
            *(("cubic", coordinates, (f32,)) for coordinates in COORDINATES[::2]),
            *(("nearest", coordinates, (f32,)) for coordinates in COORDINATES[:2]),
        )
    ]


@op("resize_gradient", samples=_samples())
class ResizeGradient(Reduction):
    """What the `size` elements of dimension `dim` get that was resized by `kind`, of the gradient of the result.

    Nearest elements are those at the floor of half-pixel coordinates plus a half, or of others.
    """

    KIND: ClassVar[str] = "sum"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (g,) = tensors
        dim, scale = params["dim"], params["scale"]
        if not 0 <= dim < g.rank or g.shape[dim] == 0 or params["size"] == 0:
            raise ShapeError(f"resize_gradient: {g} has no dimension {dim} that {params['size']} elements were made to")
        if params["kind"] not in KINDS or params["coordinates"] not in COORDINATES:
            raise ShapeError(f"resize_gradient: kinds are {tuple(KINDS)}, and coordinates {COORDINATES}")
        if scale is not None and not 0 < scale < float("inf"):
            raise ShapeError(f"resize_gradient: a scale of {scale}, expected a number above 0")
        if not g.dtype.is_float:
            raise DTypeError(f"resize_gradient takes floats, got {g}", hint="insert a cast")
        return Tensor(g.dtype, (*g.shape[:dim], params["size"], *g.shape[dim + 1 :]))

    @staticmethod
    @rounded_once
    def reference(g: np.ndarray, dim: int, size: int, scale: float | None, kind: str, coordinates: str) -> np.ndarray:
        rule: Any = KINDS[kind]
        weights = rule.reference(
            np.eye(size, dtype=g.dtype),
            shape=(g.shape[dim],),
            scales=(scale,),
            coordinates=coordinates,
            **_others(kind, coordinates),
        )
        # Elements by results.
        return np.moveaxis(np.tensordot(g, weights, (dim, 1)), -1, dim).astype(g.dtype)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        dim: int,
        size: Size,
        scale: float | None,
        kind: str,
        coordinates: str,
    ) -> Gradients:
        last, count = b.tensor(grads[0]).rank - 1, b.tensor(operands[0]).shape[dim]
        resized = b.emit(
            f"resize_{kind}",
            move_dim(b, grads[0], dim, last),
            shape=(count,),
            scales=(scale,),
            coordinates=coordinates,
            **_others(kind, coordinates),
        )
        return (move_dim(b, resized, last, dim),)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int, **params: Any) -> SSAValue:
        return b.resize_gradient(operands[0], dim=dim + 1, **params)

    @staticmethod
    def ranges(g: Tensor, dim: int, size: Size, scale: float | None, kind: str, coordinates: str) -> tuple[Size, ...]:
        return (_taps(Axis(size, g.shape[dim], scale, coordinates), kind),)

    @staticmethod
    def element(
        body: Body,
        index: Sequence[Size],
        over: Sequence[Size],
        g: Operand,
        dim: int,
        size: Size,
        scale: float | None,
        kind: str,
        coordinates: str,
    ) -> Value:
        axis = Axis(size, g.tensor.shape[dim], scale, coordinates)
        made, dtype = compute_dtype(g.tensor.dtype), f32 if kind == "nearest" else compute_dtype(g.tensor.dtype)
        taps = _taps(axis, kind)
        own = body.position(index[dim], dtype)
        first = _first(body, axis, own, taps, kind, dtype)
        start = body.index(body.cast(first, i64), axis.count - taps + 1)
        number = body.math("add", first, body.position(over[0], dtype))
        weight = body.cast(_weight(body, axis, own, number, kind, dtype), made)
        return body.math("mul", weight, in_f32(body, body.at(g, [*index[:dim], start + over[0], *index[dim + 1 :]])))

    @staticmethod
    def finish(body: Body, value: Value, index: Sequence[Size], g: Operand, **params: Any) -> Value:
        return value if value.dtype == g.tensor.dtype else body.cast(value, g.tensor.dtype)


def _others(kind: str, coordinates: str) -> dict[str, Any]:
    if kind == "nearest":
        return {"rounding": _rounding(coordinates)}
    return {"coefficient": _A} if kind == "cubic" else {}


def _rounding(coordinates: str) -> str:
    return "round_prefer_ceil" if coordinates == "half_pixel" else "floor"


def _taps(axis: Axis, kind: str) -> Size:
    """At most how many results are made of one element."""
    reach = max(2 * _REACH[kind], 1)
    if isinstance(axis.size, int) and isinstance(axis.count, int):
        return min(axis.count, _counted(axis, kind))
    if axis.scale is not None and axis.coordinates != "align_corners":
        return minimum(axis.count, int(np.ceil(reach * axis.scale)) + 2 + ceildiv(axis.count, _EXACT))
    less = 1 if axis.coordinates == "align_corners" else 0
    of_one = ceildiv(reach * (axis.count - less), maximum(axis.size - less, 1))
    return minimum(axis.count, of_one + 2 + ceildiv(axis.count, _EXACT))


def _counted(axis: Axis, kind: str) -> int:
    """The same of known sizes: from the first that is asked for to the last that there is."""
    assert isinstance(axis.size, int) and isinstance(axis.count, int)
    places, last = axis.places(f32), axis.size - 1
    if kind == "nearest":
        reached = [np.floor(axis.places(f32, ROUND[_rounding(axis.coordinates)][0]))]
    else:
        below = np.floor(np.clip(places, 0, last) if kind == "linear" else places)
        reached = [below + n for n in ((0, 1) if kind == "linear" else (-1, 0, 1, 2))]
    most, step = 1, float(axis.fixed_step(f32))
    for own in reached:
        own = np.clip(own, 0, last)
        numbers = np.arange(axis.count)
        most = max(most, int(np.max(numbers - _first_of(own, axis, step, kind))) + 1)
    return most


def _first_of(own: Any, axis: Axis, step: float, kind: str) -> Any:
    """`_first` of known sizes, but that it may lie so near the end that there are fewer results than taps."""
    if step == 0:
        return np.zeros_like(own)
    half = axis.coordinates == "half_pixel"
    shift = 0.0 if not half else step / 2 if kind == "nearest" else (step - 1) / 2
    assert isinstance(axis.count, int)
    return np.maximum(np.floor((own - _REACH[kind] - shift) / step - max(_MARGIN, axis.count / _EXACT)) + 1, 0)


def _first(body: Body, axis: Axis, own: Value, taps: Size, kind: str, dtype: DType) -> Value:
    """The first result whose place is less than the reach before an element: where `axis.place` is that."""
    zero, one = body.constant(0, dtype), body.constant(1, dtype)
    if taps == axis.count or axis.size == 1:
        return zero
    step = axis.step(body, dtype)
    shift = body.constant(_REACH[kind], dtype)
    if axis.coordinates == "half_pixel":
        half = body.constant(0.5, dtype)
        whole = step if kind == "nearest" else body.math("sub", step, one)
        shift = body.math("add", shift, body.math("mul", half, whole))
    first = body.math("sub", body.math("div", body.math("sub", own, shift), step), _margin(body, axis, dtype))
    first = body.math("add", body.math("floor", first), one)
    last = body.position(axis.count - taps, dtype)
    return body.math("max", body.math("min", first, last), zero)


def _margin(body: Body, axis: Axis, dtype: DType) -> Value:
    """How much later the first result may be found by rounding, which is more where there are many."""
    if isinstance(axis.count, int):
        return body.constant(max(_MARGIN, axis.count / _EXACT), dtype)
    many = body.math("mul", body.position(axis.count, dtype), body.constant(1 / _EXACT, dtype))
    return body.math("max", many, body.constant(_MARGIN, dtype))


def _weight(body: Body, axis: Axis, own: Value, number: Value, kind: str, dtype: DType) -> Value:
    """What the element counts for in a result."""
    zero, one, last = body.constant(0, dtype), body.constant(1, dtype), body.position(axis.size - 1, dtype)

    def inside(value: Value) -> Value:
        return body.math("max", body.math("min", value, last), zero)

    if kind == "nearest":
        shift, _ = ROUND[_rounding(axis.coordinates)]
        place = inside(body.math("floor", axis.place_of(body, number, dtype, shift)))
        return body.where(body.math("eq", place, own), one, zero)
    place = axis.place_of(body, number, dtype)
    if kind == "linear":
        distance = body.math("abs", body.math("sub", inside(place), own))
        return body.math("max", body.math("sub", one, distance), zero)
    below = body.math("floor", place)
    weights = cubic_weights(Arithmetic.of_body(body, dtype), body.math("sub", place, below), _A)
    total = zero
    for n, weight in zip((-1, 0, 1, 2), weights, strict=True):
        position = inside(body.math("add", below, body.constant(n, dtype)))
        total = body.math("add", total, body.where(body.math("eq", position, own), weight, zero))
    return total
