"""What a graph's values are while it is read: tensors in memory, and products and expressions on their way there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from weft.spatial.isa import Function
from weft.spatial.mapping.layers import BlockProduct, Convolution, Node, Operand, PixelSum, Placed


@dataclass(frozen=True)
class Wide:
    """A tensor whose elements are read as integers of 32 bits, perhaps with pixels around it."""

    tensor: Placed
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    value: int | None = None


@dataclass(frozen=True)
class RowSum:
    """The sum over the last dimension: it is made in as many lanes as what it is combined with has."""


@dataclass(frozen=True)
class Product:
    """A product that nothing was computed of yet."""

    source: Placed
    output: tuple[int, int, int]
    shape: tuple[int, ...]
    work: Convolution | PixelSum | BlockProduct | RowSum
    order: np.ndarray | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Expression:
    """What the vector unit computes, so far, of a product and of tensors."""

    node: Operand
    product: Product | None
    tensor: Placed | None
    shape: tuple[int, ...]
    steps: tuple[str, ...] = ()
    """What is left of a conversion to 8 bits: rounded, then at most 127, at least -128."""


@dataclass(frozen=True)
class Heads:
    """A matrix [S, H · d] seen by heads. `axes` names the dimensions: s, h, d; g and r where heads are repeated."""

    tensor: Placed
    heads: int
    width: int
    axes: str
    repeats: int = 1


def unary(function: Function, x: Any) -> Expression | None:
    """A function of an expression that is not converted yet."""
    if not isinstance(x, Expression) or x.steps:
        return None
    return Expression(Node(function, (x.node,)), x.product, x.tensor, x.shape)


def by_channel(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """A number for each channel, where a constant is one when it is broadcast."""
    if len(shape) == 3:
        return values.reshape(-1) if values.size == 1 else None
    channels = shape[1]
    if values.size == 1:
        return np.full(channels if len(shape) == 4 else 1, values.reshape(-1)[0])
    wanted = (channels,) if len(shape) == 2 else (channels, 1, 1)
    kept = values.shape[len(values.shape) - len(wanted) :]
    return values.reshape(-1) if kept == wanted and values.size == channels else None


def clamped(x: Any, y: Any, limit: float, step: str) -> Expression | None:
    """An expression that was rounded, with a limit of its conversion: `y` must be just that."""
    if array_of(x) is not None:
        x, y = y, x
    limits = array_of(y)
    if not isinstance(x, Expression) or limits is None or "round" not in x.steps:
        return None
    if step in x.steps or np.any(limits != limit):
        return None
    return Expression(x.node, x.product, x.tensor, x.shape, (*x.steps, step))


def array_of(value: Any) -> np.ndarray | None:
    """A constant, if it is one."""
    return cast(np.ndarray, value) if isinstance(value, np.ndarray) else None


def kind_of(value: Any) -> str:
    """What a value is, in the words of an error."""
    match value:
        case np.ndarray():
            return "a constant"
        case Placed():
            return f"the tensor {value.name}"
        case Product():
            return "a product"
        case Wide():
            return f"the tensor {value.tensor.name} in 32 bits"
        case _:
            return "an expression"
