"""Reading elements at computed indices: gather, take and advanced indexing.

A negative index counts from the end, as in NumPy. What lies outside even so is undefined, but reads no foreign memory:
the nearest element takes its place, and zero that of an element of a dimension which has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Expr, Size, is_nonnegative
from weft.ir.types import Tensor, boolean, i32, i64
from weft.ops.base import Movement, broadcast_shapes, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.rules import Gradients, Values, align_batched, all_batched, batch_size, iota, move_dim, zeros
from weft.ops.samples import MOVED, Input, Sample


def wrapped(body: Body, value: Value, size: Size) -> Expr:
    """An index value as an index into a dimension of `size`: counted from the end if negative, and kept inside."""
    value = body.cast(value, i64)
    zero, extent = body.constant(0, i64), body.position(size, i64)
    value = body.where(body.math("lt", value, zero), body.math("add", value, extent), value)
    last = body.math("sub", extent, body.constant(1, i64))
    # A dimension without elements has no place: `read_at` reads nothing there, whatever this says.
    return body.index(body.math("max", body.math("min", value, last), zero), 1 if size == 0 else size)


def wrapped_reference(index: np.ndarray, size: int) -> np.ndarray:
    """NumPy's form of `wrapped`."""
    index = index.astype(np.int64)
    return np.clip(np.where(index < 0, index + size, index), 0, max(size - 1, 0))


def read_at(body: Body, x: Operand, place: Sequence[Size], dims: Sequence[int]) -> Value:
    """The element at a place that is `wrapped` in some dimensions; zero where one of these is empty."""
    mask: Value | None = None
    for size in dict.fromkeys(x.tensor.shape[dim] for dim in dims):
        if size == 0:
            return body.constant(0, x.tensor.dtype)
        if not is_nonnegative(size - 1):
            mask = body.both(mask, body.math("gt", body.position(size, i64), body.constant(0, i64)))
    return body.at(x, place, mask)


def check_index(name: str, *indices: Tensor) -> None:
    """Raise unless all are integers."""
    for index in indices:
        if not index.dtype.is_integer:
            raise DTypeError(
                f"{name}: an index tensor has integers, got {index}", hint="turn masks into positions first"
            )


def check_dim(name: str, x: Tensor, *dims: int) -> None:
    """Raise unless all are different dimensions of `x`."""
    if len(set(dims)) != len(dims) or any(not 0 <= dim < x.rank for dim in dims):
        raise ShapeError(f"{name}: {dims} are not dimensions of {x}")


@op(
    "gather",
    onnx="GatherElements",
    samples=[
        Sample((Input((5, 4)), Input((3, 4), -5, 5, i64)), {"dim": 0}, MOVED),
        Sample((Input((5, 4)), Input((2, 7), -4, 4, i32)), {"dim": 1}, MOVED),
        Sample((Input((2, 3, 4)), Input((2, 0, 4), 0, 3, i64)), {"dim": 1}, MOVED),
        Sample((Input((3,)), Input((6,), -9, 9, i64)), {"dim": 0}, MOVED),
        Sample((Input((2, 0)), Input((2, 3), -2, 2, i64)), {"dim": 1}, (i64, boolean)),
    ],
)
class Gather(Movement):
    """`x[i, index[i, j, k], k]` for dim 1: the index has the result's shape, and replaces one dimension's position."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, index = tensors
        check_index("gather", index)
        check_dim("gather", x, params["dim"])
        if x.rank != index.rank:
            raise ShapeError(f"gather: {x} and the index {index} have different ranks")
        for d, (size, count) in enumerate(zip(x.shape, index.shape, strict=True)):
            if d != params["dim"] and isinstance(size, int) and isinstance(count, int) and count > size:
                raise ShapeError(f"gather: the index {index} is larger than {x} in dimension {d}")
        return Tensor(x.dtype, index.shape)

    @staticmethod
    def reference(x: np.ndarray, index: np.ndarray, dim: int) -> np.ndarray:
        inner = x[tuple(slice(None) if d == dim else slice(size) for d, size in enumerate(index.shape))]
        if x.size == 0:
            return np.zeros(index.shape, x.dtype)
        return np.take_along_axis(inner, wrapped_reference(index, x.shape[dim]), dim)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        x, index = operands
        return b.scatter(zeros(b, x), index, grads[0], dim=dim, kind="add"), None

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int) -> SSAValue:
        return b.gather(*all_batched(b, operands, batched), dim=dim + 1)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, places: Operand, dim: int) -> Value:
        place = wrapped(body, body.at(places, index), x.tensor.shape[dim])
        return read_at(body, x, [*index[:dim], place, *index[dim + 1 :]], [dim])


@op(
    "take",
    onnx="Gather",
    samples=[
        Sample((Input((5, 4)), Input((3,), -5, 5, i64)), {"dim": 0}, MOVED),
        Sample((Input((2, 5, 4)), Input((3, 2), -5, 5, i32)), {"dim": 1}, MOVED),
        Sample((Input((2, 5)), Input((), 0, 5, i64)), {"dim": 1}, MOVED),
        Sample((Input((5, 3)), Input((0,), 0, 5, i64)), {"dim": 0}, MOVED),
        Sample((Input((3,)), Input((6,), -9, 9, i64)), {"dim": 0}, MOVED),
        Sample((Input((0, 3)), Input((2,), -2, 2, i64)), {"dim": 0}, (i64, boolean)),
    ],
)
class Take(Movement):
    """Slices of `x` at the positions `index` in `dim`; the dimensions of the index take the place of `dim`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, index = tensors
        dim: int = params["dim"]
        check_index("take", index)
        check_dim("take", x, dim)
        return Tensor(x.dtype, (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))

    @staticmethod
    def reference(x: np.ndarray, index: np.ndarray, dim: int) -> np.ndarray:
        if x.size == 0:
            return np.zeros((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), x.dtype)
        return np.take(x, wrapped_reference(index, x.shape[dim]), axis=dim)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        x, index = operands
        return b.index_put(zeros(b, x), index, grads[0], dims=(dim,), position=dim, accumulate=True), None

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int) -> SSAValue:
        x, index = operands
        if not batched[1]:
            return b.take(x, index, dim=dim + 1)
        if not batched[0]:
            return move_dim(b, b.take(x, index, dim=dim), dim, 0)
        return Index.batch(b, operands, batched, dims=(dim,), position=dim)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, places: Operand, dim: int) -> Value:
        rank = places.tensor.rank
        place = wrapped(body, body.at(places, index[dim : dim + rank]), x.tensor.shape[dim])
        return read_at(body, x, [*index[:dim], place, *index[dim + rank :]], [dim])


def indexed_shape(name: str, x: Tensor, indices: Sequence[Tensor], dims: tuple[int, ...], position: int) -> Tensor:
    """The type of `x` indexed in `dims`: the shape of the indices stands at `position` among the other dimensions."""
    check_index(name, *indices)
    check_dim(name, x, *dims)
    rest = [size for d, size in enumerate(x.shape) if d not in dims]
    if len(indices) != len(dims) or not dims or not 0 <= position <= len(rest):
        raise ShapeError(f"{name}: {len(indices)} index tensors for dimensions {dims} of {x}, placed at {position}")
    chosen = broadcast_shapes(*(index.shape for index in indices))
    return Tensor(x.dtype, (*rest[:position], *chosen, *rest[position:]))


def indexed_place(
    body: Body, index: Sequence[Size], x: Tensor, indices: Sequence[Operand], dims: tuple[int, ...], position: int
) -> list[Size]:
    """The index into `x` that stands at `index` of the result."""
    rank = max(places.tensor.rank for places in indices)
    chosen = index[position : position + rank]
    rest = iter([*index[:position], *index[position + rank :]])
    place: dict[int, Size] = {}
    for dim, places in zip(dims, indices, strict=True):
        shape = places.tensor.shape
        own = [0 if size == 1 else i for size, i in zip(shape, chosen[rank - len(shape) :], strict=True)]
        place[dim] = wrapped(body, body.at(places, own), x.shape[dim])
    return [place[d] if d in place else next(rest) for d in range(x.rank)]


def indexed_reference(x: np.ndarray, indices: Sequence[np.ndarray], dims: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The NumPy indices, one for each dimension, that choose `dims` first and leave the others whole behind them."""
    rest = [d for d in range(x.ndim) if d not in dims]
    full: list[Any] = [None] * x.ndim
    for place, d in enumerate(rest):
        whole: Any = np.indices(x.shape[d : d + 1])[0]
        full[d] = np.expand_dims(whole, tuple(range(1, len(rest) - place)))
    for dim, index in zip(dims, indices, strict=True):
        full[dim] = wrapped_reference(index, x.shape[dim]).reshape((*index.shape, *(1,) * len(rest)))
    return tuple(full)


def indices_first(position: int, rank: int, rest: int) -> list[int]:
    """The dimensions of an indexed result, those of the indices first."""
    chosen = range(position, position + rank)
    return [*chosen, *(d for d in range(rank + rest) if d not in chosen)]


@op(
    "index",
    samples=[
        Sample((Input((5, 4, 3)), Input((2,), -5, 5, i64)), {"dims": (0,), "position": 0}, MOVED),
        Sample((Input((5, 4, 3)), Input((2, 6), -4, 4, i64)), {"dims": (1,), "position": 1}, MOVED),
        Sample(
            (Input((5, 4, 3)), Input((2, 1), 0, 5, i64), Input((7,), -3, 3, i32)),
            {"dims": (0, 2), "position": 0},
            MOVED,
        ),
        Sample((Input((2, 5, 4)), Input((3,), 0, 5, i64), Input((3,), 0, 4, i64)), {"dims": (1, 2), "position": 1}),
        Sample((Input((5, 4)), Input((), 0, 5, i64), Input((0,), 0, 4, i64)), {"dims": (0, 1), "position": 0}),
        Sample((Input((3, 2)), Input((6,), -9, 9, i64)), {"dims": (0,), "position": 1}),
        Sample(
            (Input((0, 4)), Input((2,), 0, 2, i64), Input((2,), 0, 4, i64)), {"dims": (0, 1), "position": 0}, (i64,)
        ),
    ],
)
class Index(Movement):
    """Advanced indexing: one index tensor for each of `dims`, broadcast together.

    Their common shape stands at `position` among the dimensions of `x` that are not indexed.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        return indexed_shape("index", tensors[0], tensors[1:], params["dims"], params["position"])

    @staticmethod
    def reference(x: np.ndarray, *indices: np.ndarray, dims: tuple[int, ...], position: int) -> np.ndarray:
        places = indexed_reference(x, indices, dims)
        chosen = x[places] if x.size else np.zeros(np.broadcast_shapes(*(place.shape for place in places)), x.dtype)
        rank, rest = max(index.ndim for index in indices), x.ndim - len(dims)
        return np.transpose(chosen, np.argsort(indices_first(position, rank, rest)))

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        dims: tuple[int, ...],
        position: int,
    ) -> Gradients:
        x, *indices = operands
        grad = b.index_put(zeros(b, x), *indices, grads[0], dims=dims, position=position, accumulate=True)
        return grad, *(None for _ in indices)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], dims: tuple[int, ...], position: int
    ) -> SSAValue:
        x, *indices = operands
        if not any(batched[1:]):
            return b.index(x, *indices, dims=tuple(d + 1 for d in dims), position=position + 1)
        indices = batched_indices(b, operands, batched)
        if batched[0]:
            dims = (0, *(d + 1 for d in dims))
        return move_dim(b, b.index(x, *indices, dims=dims, position=position), position, 0)

    @staticmethod
    def pull(
        body: Body, index: Sequence[Size], x: Operand, *indices: Operand, dims: tuple[int, ...], position: int
    ) -> Value:
        return read_at(body, x, indexed_place(body, index, x.tensor, indices, dims, position), dims)


def batched_indices(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> list[SSAValue]:
    """Index tensors with the batch in front of their common shape; a batched `x` gets one more, for its batch."""
    _, *indices = operands
    rank = max(b.tensor(index).rank - flag for index, flag in zip(indices, batched[1:], strict=True))
    aligned = [
        align_batched(b, index, rank) if flag else index for index, flag in zip(indices, batched[1:], strict=True)
    ]
    if not batched[0]:
        return aligned
    size = batch_size(b, operands, batched)
    return [b.reshape(iota(b, size), shape=(size, *(1 for _ in range(rank)))), *aligned]
