"""Copies of elements to other places: padding, concatenation, rotation, arbitrary strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, maximum, minimum, mod, product
from weft.ir.types import Tensor, boolean, f32, i64
from weft.ops.base import Movement, op, same_dtype
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.reshaping import reshape_index
from weft.ops.rules import Gradients, Values, all_batched, iota, zeros
from weft.ops.samples import Input, Sample
from weft.ops.sharding_rules import ShardingRule, blocks_of

_MOVED = (f32, i64, boolean)


def check_padding(name: str, x: Tensor, low: Sequence[Size], high: Sequence[Size]) -> Tensor:
    """The type of `x` padded on both sides."""
    if not len(low) == len(high) == x.rank or any(isinstance(p, int) and p < 0 for p in (*low, *high)):
        raise ShapeError(f"{name}: {x} needs {x.rank} paddings of at least 0, got {low} and {high}")
    return Tensor(x.dtype, tuple(a + size + z for a, size, z in zip(low, x.shape, high, strict=True)))


@op(
    "pad",
    stablehlo="pad",
    samples=[
        Sample((Input((5,)),), {"low": (2,), "high": (1,), "value": 0.0}),
        Sample((Input((2, 3)),), {"low": (0, 1), "high": (3, 0), "value": -1.5}),
        Sample((Input((2, 3)),), {"low": (0, 1), "high": (3, 0), "value": 7}, (i64,)),
        Sample((Input((0, 3)),), {"low": (2, 0), "high": (0, 0), "value": 1.0}),
    ],
)
class Pad(Movement):
    """Surround with `value`: `low` elements before each dimension and `high` after it."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        return check_padding("pad", x, params["low"], params["high"])

    @staticmethod
    def sharding(x: Tensor, low: tuple[Size, ...], high: tuple[Size, ...], **params: Any) -> ShardingRule:
        whole = tuple(a + size + z for a, size, z in zip(low, x.shape, high, strict=True))
        rule = blocks_of(whole, x.shape, low, (1,) * x.rank)
        return ShardingRule(rule.results, rule.operands, rule.sizes, fixed=rule.fixed)

    @staticmethod
    def local_params(
        x: Tensor, part: Tensor, low: tuple[Size, ...], high: tuple[Size, ...], **params: Any
    ) -> dict[str, Any]:
        def local(paddings: tuple[Size, ...]) -> tuple[Size, ...]:
            sizes = zip(paddings, x.shape, part.shape, strict=True)
            return tuple(padding if whole == own else padding * own // whole for padding, whole, own in sizes)

        return {"low": local(low), "high": local(high), **params}

    @staticmethod
    def reference(x: np.ndarray, low: tuple[int, ...], high: tuple[int, ...], value: float | int | bool) -> np.ndarray:
        shape = [a + size + z for a, size, z in zip(low, x.shape, high, strict=True)]
        result = np.full(shape, np.asarray(value).astype(x.dtype))
        result[tuple(slice(a, a + size) for a, size in zip(low, x.shape, strict=True))] = x
        return result

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        low: tuple[Size, ...],
        high: tuple[Size, ...],
        value: float | int | bool,
    ) -> Gradients:
        return (b.slice(grads[0], starts=low, shape=b.tensor(operands[0]).shape, steps=(1,) * len(low)),)

    @staticmethod
    def batch(
        b: GraphBuilder,
        operands: Values,
        batched: Sequence[bool],
        low: tuple[Size, ...],
        high: tuple[Size, ...],
        value: float | int | bool,
    ) -> SSAValue:
        return b.pad(operands[0], low=(0, *low), high=(0, *high), value=value)

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        low: tuple[Size, ...],
        high: tuple[Size, ...],
        value: float | int | bool,
    ) -> Value:
        source = [i - before for i, before in zip(index, low, strict=True)]
        mask: Value | None = None
        for d, size in enumerate(x.tensor.shape):
            if low[d] != 0 or high[d] != 0:
                mask = body.both(mask, body.inside(source[d], size))
        return body.at(x, source, mask, value)


_LEAST: dict[str, Callable[[Size], Size]] = {
    "edge": lambda padding: 1,
    "reflect": lambda padding: padding + 1,
    "wrap": lambda padding: padding,
}
"""How many elements each mode of padding needs."""


@op(
    "pad_mode",
    samples=[
        Sample((Input(x),), {"low": low, "high": high, "mode": mode}, _MOVED)
        for mode in _LEAST
        for x, low, high in (((5,), (2,), (3,)), ((2, 3, 4), (0, 1, 3), (0, 2, 0)), ((0, 3), (0, 2), (0, 1)))
    ],
)
class PadMode(Movement):
    """Surround with the operand's own elements: `mode` says which.

    edge: those at the edge. reflect: mirrored at those at the edge. wrap: those of the other side.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        mode: str = params["mode"]
        if mode not in _LEAST:
            raise ShapeError(f"pad_mode: {mode!r} is not one of {', '.join(_LEAST)}")
        result = check_padding("pad_mode", x, params["low"], params["high"])
        for size, *paddings in zip(x.shape, params["low"], params["high"], strict=True):
            for padding in paddings:
                missing = _LEAST[mode](padding) - size
                if padding != 0 and isinstance(missing, int) and missing > 0:
                    raise ShapeError(f"pad_mode: {x} has too few elements to {mode} {padding} of {size}")
        return result

    @staticmethod
    def reference(x: np.ndarray, low: tuple[int, ...], high: tuple[int, ...], mode: Any) -> np.ndarray:
        for d, pair in enumerate(zip(low, high, strict=True)):
            if any(pair):
                x = np.pad(x, [pair if other == d else (0, 0) for other in range(x.ndim)], mode=mode)
        return x

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        low: tuple[Size, ...],
        high: tuple[Size, ...],
        mode: str,
    ) -> Gradients:
        (g,) = grads
        for d, (size, before, after) in enumerate(zip(b.tensor(operands[0]).shape, low, high, strict=True)):
            if (before, after) != (0, 0):
                places = b.pad_mode(iota(b, size), low=(before,), high=(after,), mode=mode)
                shape = b.tensor(g).shape
                inner = zeros(b, g, (*shape[:d], size, *shape[d + 1 :]))
                g = b.index_put(inner, places, g, dims=(d,), position=d, accumulate=True)
        return (g,)

    @staticmethod
    def batch(
        b: GraphBuilder,
        operands: Values,
        batched: Sequence[bool],
        low: tuple[Size, ...],
        high: tuple[Size, ...],
        mode: str,
    ) -> SSAValue:
        return b.pad_mode(operands[0], low=(0, *low), high=(0, *high), mode=mode)

    @staticmethod
    def pull(
        body: Body, index: Sequence[Size], x: Operand, low: tuple[Size, ...], high: tuple[Size, ...], mode: str
    ) -> Value:
        source: list[Size] = []
        for i, size, before, after in zip(index, x.tensor.shape, low, high, strict=True):
            place = i - before
            if (before, after) == (0, 0):
                source.append(place)
            elif mode == "edge":
                source.append(minimum(maximum(place, 0), size - 1))
            elif mode == "reflect":
                distance = maximum(place, -place)
                source.append(minimum(distance, 2 * (size - 1) - distance))
            else:
                source.append(mod(place, size))
        return body.at(x, source)


@op(
    "copy",
    samples=[
        Sample((Input((2, 3)),), {}, _MOVED),
        Sample((Input((0, 3)),), {}, _MOVED),
        Sample((Input(()),), {}, _MOVED),
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
        Sample((Input((2, 3)), Input((4, 3))), {"dim": 0}, _MOVED),
        Sample((Input((2, 3)), Input((2, 0)), Input((2, 5))), {"dim": 1}, _MOVED),
        Sample((Input((3,)),), {"dim": 0}, _MOVED),
        Sample((Input((0,)), Input((0,))), {"dim": 0}, _MOVED),
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
        Sample((Input((7,)),), {"shifts": (3,), "dims": (0,)}, _MOVED),
        Sample((Input((4, 5)),), {"shifts": (-1, 12), "dims": (0, 1)}, _MOVED),
        Sample((Input((0, 5)),), {"shifts": (2, -2), "dims": (0, 1)}, _MOVED),
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
        Sample((Input((3, 4)),), {"shape": (2, 2), "strides": (5, 1), "offset": 2}, _MOVED),
        Sample((Input((10,)),), {"shape": (4, 3), "strides": (2, 1), "offset": 1}, _MOVED),
        Sample((Input((2, 3)),), {"shape": (4, 2), "strides": (0, 3), "offset": 0}, _MOVED),
        Sample((Input((2, 3)),), {"shape": (), "strides": (), "offset": 5}, _MOVED),
        Sample((Input((2, 3)),), {"shape": (0, 2), "strides": (1, 1), "offset": 0}, _MOVED),
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
