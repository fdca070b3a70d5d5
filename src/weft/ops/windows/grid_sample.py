"""Sampling of an image at given places, by interpolation between its elements.

Which elements and with which weights, `Sampler` says once, for the reference, the lowering rule and the gradient: each
brings the arithmetic of its own values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product as every
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size
from weft.ir.types import Tensor, bf16, dtype_of_numpy, f32, i64
from weft.ops.base import Movement, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.composites import narrowed, widened
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, all_batched, iota, move_dim, size_value, zeros
from weft.ops.samples import Input, Sample
from weft.ops.windows.interpolation import Arithmetic, cubic_slopes, cubic_weights
from weft.ops.windows.resize import compute_dtype, kept_inside

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
_CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """An element that counts: its position (a float without a fraction), its weight, and whether it is there."""

    position: Any
    weight: Any
    inside: Any


@dataclass(frozen=True)
class Sampler:
    """Finds the elements around a place in one dimension."""

    arithmetic: Arithmetic
    mode: str
    padding: str
    align_corners: bool

    def place(self, grid: Any, size: Size) -> Any:
        """The place in elements that a number of the grid stands for."""
        apply, number = self.arithmetic.apply, self.arithmetic.number
        shifted = apply("add", grid, number(1))
        if self.align_corners:
            return apply("mul", apply("mul", shifted, number(0.5)), self.arithmetic.extent(size - 1))
        return apply("mul", apply("sub", apply("mul", shifted, self.arithmetic.extent(size)), number(1)), number(0.5))

    def settled(self, place: Any, size: Size) -> Any:
        """The place after the padding has had its way."""
        if self.padding == "reflection":
            place = self._reflected(place, size)[0]
        if self.padding == "zeros":
            return place
        return self.arithmetic.apply(
            "min", self.arithmetic.apply("max", place, self.arithmetic.number(0)), self.arithmetic.extent(size - 1)
        )

    def slope(self, place: Any, size: Size) -> Any:
        """The derivative of `settled`."""
        apply, number = self.arithmetic.apply, self.arithmetic.number
        slope = number(1)
        if self.padding == "reflection":
            place, odd = self._reflected(place, size)
            slope = apply("select", odd, number(-1), number(1))
        if self.padding == "zeros":
            return slope
        within = apply("and", apply("gt", place, number(0)), apply("lt", place, self.arithmetic.extent(size - 1)))
        return apply("select", within, slope, number(0))

    def _reflected(self, place: Any, size: Size) -> tuple[Any, Any]:
        """The place mirrored into the image, and whether that turned its direction."""
        apply, number = self.arithmetic.apply, self.arithmetic.number
        first = number(0 if self.align_corners else -0.5)
        # An image of one element has nothing to reflect; the border decides then.
        span = apply("max", self.arithmetic.extent(size - 1 if self.align_corners else size), number(1))
        before = apply("lt", place, first)
        distance = apply("abs", apply("sub", place, first))
        turns = apply("floor", apply("div", distance, span))
        odd = apply("ne", apply("fmod", turns, number(2)), number(0))
        rest = apply("fmod", distance, span)
        inner = apply("select", odd, apply("sub", span, rest), rest)
        return apply("add", inner, first), apply("ne", odd, before)

    def taps(self, place: Any, size: Size) -> list[Tap]:
        """The elements around a place."""
        apply, number = self.arithmetic.apply, self.arithmetic.number
        if self.mode != "cubic":
            place = self.settled(place, size)
        if self.mode == "nearest":
            return [self._tap(apply("round", place), number(1), size)]
        below = apply("floor", place)
        share = apply("sub", place, below)
        if self.mode == "linear":
            positions = [below, apply("add", below, number(1))]
            weights = [apply("sub", number(1), share), share]
            return [self._tap(*pair, size) for pair in zip(positions, weights, strict=True)]
        positions = [self.settled(apply("add", below, number(n)), size) for n in (-1, 0, 1, 2)]
        weights = cubic_weights(self.arithmetic, share, _CUBIC)
        return [self._tap(*pair, size) for pair in zip(positions, weights, strict=True)]

    def slopes(self, place: Any, size: Size) -> list[Any]:
        """The derivatives of the weights of `taps` in the place."""
        apply, number = self.arithmetic.apply, self.arithmetic.number
        match self.mode:
            case "nearest":
                return [number(0)]
            case "linear":
                slope = self.slope(place, size)
                return [apply("sub", number(0), slope), slope]
            case _:
                return cubic_slopes(self.arithmetic, apply("sub", place, apply("floor", place)), _CUBIC)

    def _tap(self, position: Any, weight: Any, size: Size) -> Tap:
        if self.padding != "zeros":
            return Tap(position, weight, None)
        low = self.arithmetic.apply("ge", position, self.arithmetic.number(0))
        return Tap(
            position,
            weight,
            self.arithmetic.apply("and", low, self.arithmetic.apply("le", position, self.arithmetic.extent(size - 1))),
        )


def _samples() -> list[Sample]:
    return [
        Sample((Input(x), Input(grid, -1.6, 1.6)), {"mode": mode, "padding": padding, "align_corners": align}, types)
        for mode in MODES
        for padding in PADDINGS
        for align in (False, True)
        for x, grid, types in (((2, 2, 4, 3), (2, 3, 2, 2), (f32,)), ((1, 1, 2, 4, 3), (1, 2, 1, 2, 3), (f32, bf16)))
        if mode != "cubic" or len(x) == 4
    ]


@op("grid_sample", onnx="GridSample", samples=_samples())
class GridSample(Movement):
    """The elements of [N, C, ...] around the places that a grid [N, ..., rank] gives, interpolated.

    A place has one number for each spatial dimension, the last dimension's first: -1 and 1 are the edges of the image,
    or the centers of its outermost elements if `align_corners`. `mode` is linear, nearest or cubic. `padding` says what
    lies outside: zeros, the element at the border, or the image's reflection.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, grid = tensors
        dtype = same_dtype("grid_sample", tensors)
        if x.rank < 3 or grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != x.rank - 2:
            raise ShapeError(f"grid_sample: {x} and the grid {grid} do not fit", hint="the grid is [N, ..., rank]")
        if params["mode"] not in MODES or params["padding"] not in PADDINGS or 0 in x.shape[2:]:
            raise ShapeError(f"grid_sample: {x} by {params}", hint=f"modes are {MODES}, paddings {PADDINGS}")
        return Tensor(dtype, (*x.shape[:2], *grid.shape[1:-1]))

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align_corners: bool) -> np.ndarray:
        sampler = Sampler(Arithmetic.of_numpy(dtype_of_numpy(x.dtype)), mode, padding, align_corners)
        sizes = x.shape[2:]
        taps = [sampler.taps(sampler.place(grid[..., len(sizes) - 1 - d], size), size) for d, size in enumerate(sizes)]
        by_row = np.moveaxis(x, 1, -1)
        rows = np.expand_dims(np.arange(len(x)), tuple(range(1, len(sizes) + 1)))
        result = np.zeros((*grid.shape[:-1], x.shape[1]), x.dtype)
        for chosen in every(*taps):
            inside = [np.clip(t.position, 0, n - 1).astype(np.int64) for t, n in zip(chosen, sizes, strict=True)]
            mask = reduce(np.logical_and, (t.inside for t in chosen if t.inside is not None), np.True_)
            weight = reduce(np.multiply, (t.weight for t in chosen))
            elements = np.where(np.expand_dims(mask, -1), by_row[(rows, *inside)], x.dtype.type(0))
            result += elements * np.expand_dims(weight, -1)
        return np.moveaxis(result, -1, 1)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        mode: str,
        padding: str,
        align_corners: bool,
    ) -> Gradients:
        dtype = b.tensor(operands[0]).dtype
        g, x, grid = (widened(b, value) for value in (grads[0], *operands))
        sampler = Sampler(Arithmetic.of_graph(b, b.tensor(x).dtype), mode, padding, align_corners)
        sizes = b.tensor(x).shape[2:]
        counts = b.tensor(grid).shape[:-1]
        places = [sampler.place(_component(b, grid, len(sizes) - 1 - d), size) for d, size in enumerate(sizes)]
        taps = [
            list(zip(sampler.taps(place, size), sampler.slopes(place, size), strict=True))
            for place, size in zip(places, sizes, strict=True)
        ]
        by_row = move_dim(b, g, 1, len(counts))
        row = b.reshape(iota(b, counts[0]), shape=(counts[0], *(1 for _ in sizes)))
        chosen_dims = {"dims": (0, *range(2, len(sizes) + 2)), "position": 0}
        on_x, on_places = zeros(b, x), [zeros(b, g, counts) for _ in sizes]
        for chosen in every(*taps):
            indices = [row, *(_kept_inside(b, t.position, size) for (t, _), size in zip(chosen, sizes, strict=True))]
            weights = [tap.weight for tap, _ in chosen]
            part = by_row
            for mask in (tap.inside for tap, _ in chosen if tap.inside is not None):
                part = b.where(_column(b, mask, counts), part, b.full_like(part, 0))
            share = b.mul(part, _column(b, reduce(b.mul, weights), counts))
            on_x = b.index_put(on_x, *indices, share, **chosen_dims, accumulate=True)
            common = b.sum(b.mul(part, b.index(x, *indices, **chosen_dims)), dims=(len(counts),), keep=False)
            for d, (_, slope) in enumerate(chosen):
                others = (weight for other, weight in enumerate(weights) if other != d)
                on_places[d] = b.add(on_places[d], reduce(b.mul, others, b.mul(common, slope)))
        factors = [size_value(b, size - 1 if align_corners else size, b.tensor(x).dtype) for size in sizes]
        half = b.full_like(x, 0.5)
        columns = [
            _column(b, b.mul(place, b.mul(f, half)), counts) for place, f in zip(on_places, factors, strict=True)
        ]
        return narrowed(b, on_x, dtype), narrowed(b, b.concat(*reversed(columns), dim=len(counts)), dtype)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        x, grid = all_batched(b, operands, batched)
        size, rows = b.tensor(x).shape[:2]
        joined = [b.reshape(value, shape=(size * rows, *b.tensor(value).shape[2:])) for value in (x, grid)]
        y = b.grid_sample(*joined, **params)
        return b.reshape(y, shape=(size, rows, *b.tensor(y).shape[1:]))

    @staticmethod
    def pull(
        body: Body, index: Sequence[Size], x: Operand, grid: Operand, mode: str, padding: str, align_corners: bool
    ) -> Value:
        row, channel, *spatial = index
        dtype, sizes = compute_dtype(x.tensor.dtype), x.tensor.shape[2:]
        sampler = Sampler(Arithmetic.of_body(body, dtype), mode, padding, align_corners)
        taps: list[list[tuple[Tap, Size]]] = []
        for d, size in enumerate(sizes):
            number = body.cast(body.at(grid, [row, *spatial, len(sizes) - 1 - d]), dtype)
            found = sampler.taps(sampler.place(number, size), size)
            taps.append([(tap, kept_inside(body, tap.position, size)) for tap in found])
        value: Value | None = None
        for chosen in every(*taps):
            mask: Value | None = None
            for tap, _ in chosen:
                mask = body.both(mask, tap.inside)
            part = body.cast(body.at(x, [row, channel, *(place for _, place in chosen)], mask), dtype)
            for tap, _ in chosen:
                part = body.math("mul", part, tap.weight)
            value = part if value is None else body.math("add", value, part)
        assert value is not None, "there is a dimension, and every dimension has taps"
        return body.cast(value, x.tensor.dtype)


def _component(b: GraphBuilder, grid: SSAValue, number: int) -> SSAValue:
    *outer, _ = b.tensor(grid).shape
    starts, steps = (*(0 for _ in outer), number), (1,) * (len(outer) + 1)
    return b.reshape(b.slice(grid, starts=starts, shape=(*outer, 1), steps=steps), shape=tuple(outer))


def _kept_inside(b: GraphBuilder, position: SSAValue, size: Size) -> SSAValue:
    dtype = b.tensor(position).dtype
    last = size_value(b, size - 1, dtype)
    return b.cast(b.minimum(b.maximum(position, b.full_like(position, 0)), last), dtype=i64)


def _column(b: GraphBuilder, value: SSAValue, counts: Sequence[Size]) -> SSAValue:
    """A value for each place with a dimension of size 1 behind it; a single number stays."""
    return b.reshape(value, shape=(*counts, 1)) if b.tensor(value).rank else value
