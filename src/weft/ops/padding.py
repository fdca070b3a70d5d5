"""Surrounding a tensor with a value, or with its own elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, maximum, minimum, mod
from weft.ir.types import Tensor, i64
from weft.ops.base import Movement, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.rules import Gradients, Values, iota, zeros
from weft.ops.samples import MOVED, Input, Sample
from weft.ops.sharding_rules import ShardingRule, blocks_of


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
        Sample((Input(x),), {"low": low, "high": high, "mode": mode}, MOVED)
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
