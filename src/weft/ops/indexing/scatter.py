"""Writing elements at computed indices: scatter, index_put and update_slice give a changed copy of their first operand.

Indices are read as in `weft.ops.indexing.index`: negative ones count from the end. Updates happen in row-major order,
so of several assignments to one element the last one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, floordiv, mod, product
from weft.ir.types import Tensor, i32, i64
from weft.ops.base import Movement, Scatter, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.indexing.index import (
    batched_indices,
    check_dim,
    check_index,
    indexed_place,
    indexed_reference,
    indexed_shape,
    indices_first,
    wrapped,
    wrapped_reference,
)
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, all_batched, batch_size, iota, move_dim, with_batch, zeros
from weft.ops.samples import MOVED, Input, Sample
from weft.ops.shape import Slice

_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
KINDS = ("assign", *_COMBINE)


def _samples() -> list[Sample]:
    small = [
        Sample((Input((5, 4)), Input((3, 4), -5, 5, i64), Input((3, 4))), {"dim": 0, "kind": kind}, NUMBERS)
        for kind in KINDS
    ]
    return [
        *small,
        Sample((Input((5, 4)), Input((2, 7), -4, 4, i32), Input((3, 8))), {"dim": 1, "kind": "assign"}, MOVED),
        Sample((Input((3, 2)), Input((9, 2), -3, 3, i64), Input((9, 2))), {"dim": 0, "kind": "add"}, NUMBERS),
        Sample((Input((3, 2)), Input((0, 2), 0, 3, i64), Input((0, 2))), {"dim": 0, "kind": "add"}, NUMBERS),
        Sample((Input((3,)), Input((6,), -9, 9, i64), Input((6,))), {"dim": 0, "kind": "max"}, NUMBERS),
    ]


@op("scatter", onnx="ScatterElements", samples=_samples())
class ScatterElements(Scatter):
    """`x` with `updates[i, j, k]` written to `[i, index[i, j, k], k]`, for dim 1.

    `kind` says how an update joins what is there: assign, add, mul, max, min. Updates may be larger than the index;
    the rest of them is not used.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, index, updates = tensors
        dim: int = params["dim"]
        check_index("scatter", index)
        check_dim("scatter", x, dim)
        same_dtype("scatter", (x, updates))
        if params["kind"] not in KINDS:
            raise ShapeError(f"scatter: kind {params['kind']!r} is not one of {', '.join(KINDS)}")
        if not x.rank == index.rank == updates.rank:
            raise ShapeError(f"scatter: {x}, the index {index} and the updates {updates} have different ranks")
        for d, count in enumerate(index.shape):
            rooms = (updates.shape[d],) if d == dim else (updates.shape[d], x.shape[d])
            if any(isinstance(room, int) and isinstance(count, int) and count > room for room in rooms):
                raise ShapeError(f"scatter: the index {index} is larger than {x} or {updates} in dimension {d}")
        return x

    @staticmethod
    @rounded_once
    def reference(x: np.ndarray, index: np.ndarray, updates: np.ndarray, dim: int, kind: str) -> np.ndarray:
        result = x.copy()
        if x.size == 0:
            return result
        places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
        places[dim] = wrapped_reference(index, x.shape[dim])
        used = updates[tuple(slice(size) for size in index.shape)]
        if kind == "assign":
            result[tuple(places)] = used
        else:
            _COMBINE[kind].at(result, tuple(places), used)
        return result

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int, kind: str) -> Gradients:
        (g,), (x, index, updates) = grads, operands
        counted = b.tensor(index).shape
        inner = b.slice(updates, starts=(0,) * len(counted), shape=counted, steps=(1,) * len(counted))
        places = _Places(
            read=lambda source: b.gather(source, index, dim=dim),
            write=lambda target, values, how: b.scatter(target, index, values, dim=dim, kind=how),
        )
        on_x, on_updates = _RULES[kind](b, places, g, x, inner, results[0])
        high = tuple(room - size for room, size in zip(b.tensor(updates).shape, counted, strict=True))
        return on_x, None, b.pad(on_updates, low=(0,) * len(high), high=high, value=0)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int, kind: str) -> SSAValue:
        return b.scatter(*all_batched(b, operands, batched), dim=dim + 1, kind=kind)

    @staticmethod
    def updates(x: Tensor, index: Tensor, updates: Tensor, dim: int, kind: str) -> tuple[Size, ...]:
        return index.shape

    @staticmethod
    def target(
        body: Body, index: Sequence[Size], x: Operand, places: Operand, updates: Operand, dim: int, kind: str
    ) -> list[Size]:
        place = wrapped(body, body.at(places, index), x.tensor.shape[dim])
        return [*index[:dim], place, *index[dim + 1 :]]

    @staticmethod
    def update(
        body: Body, index: Sequence[Size], x: Operand, places: Operand, updates: Operand, dim: int, kind: str
    ) -> Value:
        return body.at(updates, index)


@op(
    "index_put",
    samples=[
        Sample(
            (Input(x), *indices, Input(updates)), {"dims": dims, "position": position, "accumulate": accumulate}, types
        )
        for accumulate, types in ((False, MOVED), (True, NUMBERS))
        for x, indices, updates, dims, position in (
            ((5, 4, 3), (Input((2,), -5, 5, i64),), (2, 4, 3), (0,), 0),
            ((5, 4, 3), (Input((2, 6), -4, 4, i32),), (5, 2, 6, 3), (1,), 1),
            ((5, 4, 3), (Input((2, 1), 0, 5, i64), Input((7,), -3, 3, i64)), (2, 7, 4), (0, 2), 0),
            ((5, 4), (Input((9,), 0, 5, i64), Input((), 0, 4, i64)), (9,), (0, 1), 0),
            ((5, 4), (Input((0,), 0, 5, i64),), (4, 0), (0,), 1),
            ((3, 2), (Input((6,), -9, 9, i64),), (6, 2), (0,), 0),
        )
    ],
)
class IndexPut(Scatter):
    """`x` with the updates written to the places that `index` with the same parameters reads; added if `accumulate`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, *indices, updates = tensors
        same_dtype("index_put", (x, updates))
        place = indexed_shape("index_put", x, indices, params["dims"], params["position"])
        if place.shape != updates.shape:
            raise ShapeError(f"index_put: the updates are {updates}, and their places {place}", hint="broadcast them")
        return x

    @staticmethod
    @rounded_once
    def reference(
        x: np.ndarray, *arrays: np.ndarray, dims: tuple[int, ...], position: int, accumulate: bool
    ) -> np.ndarray:
        *indices, updates = arrays
        result = x.copy()
        if x.size == 0:
            return result
        places = indexed_reference(x, indices, dims)
        rank = max(index.ndim for index in indices)
        ordered = np.transpose(updates, indices_first(position, rank, x.ndim - len(dims)))
        if accumulate:
            np.add.at(result, places, ordered)
        else:
            result[places] = ordered
        return result

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        dims: tuple[int, ...],
        position: int,
        accumulate: bool,
    ) -> Gradients:
        x, *indices, updates = operands
        rule = _added if accumulate else _assigned
        places = _Places(
            read=lambda source: b.index(source, *indices, dims=dims, position=position),
            write=lambda target, values, kind: b.index_put(
                target, *indices, values, dims=dims, position=position, accumulate=kind == "add"
            ),
        )
        on_x, on_updates = rule(b, places, grads[0], x, updates, results[0])
        return on_x, *(None for _ in indices), on_updates

    @staticmethod
    def batch(
        b: GraphBuilder,
        operands: Values,
        batched: Sequence[bool],
        dims: tuple[int, ...],
        position: int,
        accumulate: bool,
    ) -> SSAValue:
        indices, flags = operands[1:-1], batched[1:-1]
        size = batch_size(b, operands, batched)
        x, updates = (with_batch(b, operands[place], batched[place], size) for place in (0, -1))
        shifted = tuple(d + 1 for d in dims)
        if not any(flags):
            return b.index_put(x, *indices, updates, dims=shifted, position=position + 1, accumulate=accumulate)
        places = batched_indices(b, (x, *indices), (True, *flags))
        moved = move_dim(b, updates, 0, position)
        return b.index_put(x, *places, moved, dims=(0, *shifted), position=position, accumulate=accumulate)

    @staticmethod
    def updates(*tensors: Tensor, dims: tuple[int, ...], position: int, accumulate: bool) -> tuple[Size, ...]:
        return tensors[-1].shape

    @staticmethod
    def target(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        *operands: Operand,
        dims: tuple[int, ...],
        position: int,
        accumulate: bool,
    ) -> list[Size]:
        return indexed_place(body, index, x.tensor, operands[:-1], dims, position)

    @staticmethod
    def update(
        body: Body,
        index: Sequence[Size],
        *operands: Operand,
        dims: tuple[int, ...],
        position: int,
        accumulate: bool,
    ) -> Value:
        return body.at(operands[-1], index)


@dataclass(frozen=True)
class _Places:
    """Where a scatter writes: `read(source)` gathers from there, `write(target, values, kind)` scatters."""

    read: Callable[[SSAValue], SSAValue]
    write: Callable[[SSAValue, SSAValue, str], SSAValue]


_Pair: TypeAlias = tuple[SSAValue, SSAValue]


def _assigned(b: GraphBuilder, places: _Places, g: SSAValue, x: SSAValue, updates: SSAValue, y: SSAValue) -> _Pair:
    shape = b.tensor(updates).shape
    # Of several updates of one element the last one has the gradient, and the others none.
    number = b.reshape(iota(b, product(shape)), shape=shape)
    last = places.write(b.full(value=0, shape=b.tensor(x).shape, dtype=i64), number, "assign")
    read = b.where(b.eq(places.read(last), number), places.read(g), b.full_like(g, 0))
    return places.write(g, zeros(b, updates), "assign"), read


def _added(b: GraphBuilder, places: _Places, g: SSAValue, x: SSAValue, updates: SSAValue, y: SSAValue) -> _Pair:
    return g, places.read(g)


def _multiplied(b: GraphBuilder, places: _Places, g: SSAValue, x: SSAValue, updates: SSAValue, y: SSAValue) -> _Pair:
    zero, one = b.full_like(x, 0), b.full_like(x, 1)
    # The product of the others is that of the nonzero ones, unless another one is zero.
    vanishes = b.eq(updates, zero)
    nonzero = b.where(vanishes, one, updates)
    weight = b.cast(vanishes, dtype=b.tensor(x).dtype)
    other_zeros = b.sub(places.read(places.write(zeros(b, x), weight, "add")), weight)
    others = b.div(places.read(b.mul(g, places.write(x, nonzero, "mul"))), nonzero)
    return places.write(g, updates, "mul"), b.where(b.eq(other_zeros, zero), others, zero)


def _extreme(b: GraphBuilder, places: _Places, g: SSAValue, x: SSAValue, updates: SSAValue, y: SSAValue) -> _Pair:
    dtype = b.tensor(x).dtype
    kept = b.cast(b.eq(x, y), dtype=dtype)
    chosen = b.cast(b.eq(updates, places.read(y)), dtype=dtype)
    share = b.div(g, places.write(kept, chosen, "add"))
    return b.where(b.eq(x, y), share, b.full_like(x, 0)), b.mul(places.read(share), chosen)


_RULES = {"assign": _assigned, "add": _added, "mul": _multiplied, "max": _extreme, "min": _extreme}


@op(
    "update_slice",
    stablehlo="dynamic_update_slice",
    samples=[
        Sample((Input((7,)), Input((3,))), {"starts": (2,), "steps": (1,)}, MOVED),
        Sample((Input((7, 5)), Input((3, 5))), {"starts": (1, 0), "steps": (2, 1)}, MOVED),
        Sample((Input((7, 5)), Input((7, 2))), {"starts": (6, 4), "steps": (-1, -3)}, MOVED),
        Sample((Input((4, 5)), Input((0, 2))), {"starts": (4, 1), "steps": (1, 2)}, MOVED),
        Sample((Input(()), Input(())), {"starts": (), "steps": ()}, MOVED),
    ],
)
class UpdateSlice(Movement):
    """`x` with the slice that starts at `starts` and walks in `steps` replaced by the update."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, update = tensors
        same_dtype("update_slice", tensors)
        Slice.infer(x, shape=update.shape, **params)
        return x

    @staticmethod
    def reference(x: np.ndarray, update: np.ndarray, starts: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
        result = np.array(x)
        Slice.reference(result, starts, update.shape, steps)[...] = update
        return result

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        starts: tuple[Size, ...],
        steps: tuple[int, ...],
    ) -> Gradients:
        (g,), (_, update) = grads, operands
        inside = b.slice(g, starts=starts, shape=b.tensor(update).shape, steps=steps)
        return b.update_slice(g, zeros(b, update), starts=starts, steps=steps), inside

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], starts: tuple[Size, ...], steps: tuple[int, ...]
    ) -> SSAValue:
        return b.update_slice(*all_batched(b, operands, batched), starts=(0, *starts), steps=(1, *steps))

    @staticmethod
    def pull(
        body: Body, index: Sequence[Size], x: Operand, update: Operand, starts: tuple[Size, ...], steps: tuple[int, ...]
    ) -> Value:
        mask: Value | None = None
        source: list[Size] = []
        for d, (start, step) in enumerate(zip(starts, steps, strict=True)):
            distance = index[d] - start if step > 0 else start - index[d]
            count = floordiv(distance, abs(step))
            if (start, step, update.tensor.shape[d]) != (0, 1, x.tensor.shape[d]):
                mask = body.both(mask, body.inside(count, update.tensor.shape[d]))
            if abs(step) != 1:
                rest = body.position(mod(distance, abs(step)), i64)
                mask = body.both(mask, body.math("eq", rest, body.constant(0, i64)))
            source.append(count)
        inner = body.at(update, source, mask)
        return inner if mask is None else body.where(mask, inner, body.at(x, index))
