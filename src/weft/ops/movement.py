"""Copies of elements to other places: concatenation, rotation, arbitrary strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, maximum, minimum, mod, product
from weft.ir.types import Tensor
from weft.ops.base import Movement, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.reshaping import reshape_index
from weft.ops.rules import Gradients, Values, all_batched, iota, zeros
from weft.ops.samples import MOVED, Input, Sample


@op(
    "copy",
    samples=[
        Sample((Input((2, 3)),), {}, MOVED),
        Sample((Input((0, 3)),), {}, MOVED),
        Sample((Input(()),), {}, MOVED),
    ],
)
class Copy(Movement):
    """The operand in memory of its own: what is read more often than it is worth to pick its elements together."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        return tensors[0]

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.array(x)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values) -> Gradients:
        return (grads[0],)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> SSAValue:
        return b.copy(operands[0])

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand) -> Value:
        return body.at(x, index)


@op(
    "concat",
    onnx="Concat",
    stablehlo="concatenate",
    samples=[
        Sample((Input((2, 3)), Input((4, 3))), {"dim": 0}, MOVED),
        Sample((Input((2, 3)), Input((2, 0)), Input((2, 5))), {"dim": 1}, MOVED),
        Sample((Input((3,)),), {"dim": 0}, MOVED),
        Sample((Input((0,)), Input((0,))), {"dim": 0}, MOVED),
    ],
)
class Concat(Movement):
    """The operands one after the other along `dim`."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        dim: int = params["dim"]
        dtype = same_dtype("concat", tensors)
        first = tensors[0]
        if any(not 0 <= dim < t.rank or _without(t.shape, dim) != _without(first.shape, dim) for t in tensors):
            raise ShapeError(f"concat: {', '.join(map(str, tensors))} differ in other dimensions than {dim}")
        total: Size = 0
        for tensor in tensors:
            total = total + tensor.shape[dim]
        return Tensor(dtype, (*first.shape[:dim], total, *first.shape[dim + 1 :]))

    @staticmethod
    def reference(*arrays: np.ndarray, dim: int) -> np.ndarray:
        return np.concatenate(arrays, axis=dim)

    @staticmethod
    def vjp(b: GraphBuilder, grads: Values, operands: Values, results: Values, dim: int) -> Gradients:
        pieces: list[SSAValue] = []
        offset: Size = 0
        for x in operands:
            shape = b.tensor(x).shape
            starts = tuple(offset if d == dim else 0 for d in range(len(shape)))
            pieces.append(b.slice(grads[0], starts=starts, shape=shape, steps=(1,) * len(shape)))
            offset = offset + shape[dim]
        return tuple(pieces)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], dim: int) -> SSAValue:
        return b.concat(*all_batched(b, operands, batched), dim=dim + 1)

    @staticmethod
    def pull(body: Body, index: Sequence[Size], *operands: Operand, dim: int) -> Value:
        (first, *others) = [x for x in operands if x.tensor.shape[dim] != 0] or operands
        offset = first.tensor.shape[dim]
        value = body.at(first, index, body.inside(index[dim], offset))
        for x in others:
            size = x.tensor.shape[dim]
            local = index[dim] - offset
            offset = offset + size
            mask = body.inside(local, size)
            piece = body.at(x, [*index[:dim], local, *index[dim + 1 :]], mask)
            value = piece if mask is None else body.where(mask, piece, value)
        return value


def _without(shape: tuple[Size, ...], dim: int) -> tuple[Size, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


@op(
    "roll",
    samples=[
        Sample((Input((7,)),), {"shifts": (3,), "dims": (0,)}, MOVED),
        Sample((Input((4, 5)),), {"shifts": (-1, 12), "dims": (0, 1)}, MOVED),
        Sample((Input((0, 5)),), {"shifts": (2, -2), "dims": (0, 1)}, MOVED),
    ],
)
class Roll(Movement):
    """Rotate along `dims`: the element at i goes to i + shift, around the end."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        dims: tuple[int, ...] = params["dims"]
        if len(dims) != len(params["shifts"]) or len(set(dims)) != len(dims) or any(not 0 <= d < x.rank for d in dims):
            raise ShapeError(f"roll: {params['shifts']} along {dims} is not a shift of dimensions of {x}")
        return x

    @staticmethod
    def reference(x: np.ndarray, shifts: tuple[int, ...], dims: tuple[int, ...]) -> np.ndarray:
        return np.roll(x, shifts, dims)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        shifts: tuple[Size, ...],
        dims: tuple[int, ...],
    ) -> Gradients:
        return (b.roll(grads[0], shifts=tuple(-shift for shift in shifts), dims=dims),)

    @staticmethod
    def batch(
        b: GraphBuilder, operands: Values, batched: Sequence[bool], shifts: tuple[Size, ...], dims: tuple[int, ...]
    ) -> SSAValue:
        return b.roll(operands[0], shifts=shifts, dims=tuple(d + 1 for d in dims))

    @staticmethod
    def pull(body: Body, index: Sequence[Size], x: Operand, shifts: tuple[Size, ...], dims: tuple[int, ...]) -> Value:
        source = list(index)
        for shift, d in zip(shifts, dims, strict=True):
            size = x.tensor.shape[d]
            if size != 0:
                source[d] = mod(index[d] - shift, size)
        return body.at(x, source)


@op(
    "as_strided",
    samples=[
        Sample((Input((3, 4)),), {"shape": (2, 2), "strides": (5, 1), "offset": 2}, MOVED),
        Sample((Input((10,)),), {"shape": (4, 3), "strides": (2, 1), "offset": 1}, MOVED),
        Sample((Input((2, 3)),), {"shape": (4, 2), "strides": (0, 3), "offset": 0}, MOVED),
        Sample((Input((2, 3)),), {"shape": (), "strides": (), "offset": 5}, MOVED),
        Sample((Input((2, 3)),), {"shape": (0, 2), "strides": (1, 1), "offset": 0}, MOVED),
    ],
)
class AsStrided(Movement):
    """The element at `offset + Σ index * strides` of the operand's elements in row-major order."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        shape, strides, offset = params["shape"], params["strides"], params["offset"]
        if len(shape) != len(strides):
            raise ShapeError(f"as_strided: {len(shape)} sizes and {len(strides)} strides")
        reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        first, last = (offset + sum(each(step, 0) for step in reach) for each in (minimum, maximum))
        room = product(x.shape) - 1 - last
        outside = any(isinstance(each, int) and each < 0 for each in (first, room, *shape))
        if outside and 0 not in shape:
            raise ShapeError(f"as_strided: {shape} in strides of {strides} from {offset} leaves {x}")
        return Tensor(x.dtype, shape)

    @staticmethod
    def reference(x: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
        places = np.full(shape, offset)
        for d, stride in enumerate(strides):
            places += stride * np.arange(shape[d]).reshape(-1, *(1,) * (len(shape) - 1 - d))
        return np.take(x.reshape(-1), places)

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        shape: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size,
    ) -> Gradients:
        source = b.tensor(operands[0]).shape
        count = product(source)
        places = b.as_strided(iota(b, count), shape=shape, strides=strides, offset=offset)
        flat = zeros(b, operands[0], (count,))
        added = b.index_put(flat, places, grads[0], dims=(0,), position=0, accumulate=True)
        return (b.reshape(added, shape=source),)

    @staticmethod
    def batch(
        b: GraphBuilder,
        operands: Values,
        batched: Sequence[bool],
        shape: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size,
    ) -> SSAValue:
        (x,) = operands
        size, *inner = b.tensor(x).shape
        return b.as_strided(x, shape=(size, *shape), strides=(product(inner), *strides), offset=offset)

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        shape: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size,
    ) -> Value:
        linear = offset
        for i, stride in zip(index, strides, strict=True):
            linear = linear + i * stride
        source = x.tensor.shape
        return body.at(x, reshape_index([linear], [product(source)], source))
