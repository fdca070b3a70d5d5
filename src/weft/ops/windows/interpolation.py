"""What resizing and grid sampling share: arithmetic on any kind of value, and the weights of cubic interpolation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType
from weft.ops.body import Body
from weft.ops.graph import GraphBuilder
from weft.ops.rules import size_value


@dataclass(frozen=True)
class Arithmetic:
    """The functions of `weft.tile.functions` on some kind of value: a rule's, a graph's or NumPy's.

    `apply(name, *values)` is a function, `number` a constant and `extent` a size, as values.
    """

    apply: Callable[..., Any]
    number: Callable[[float], Any]
    extent: Callable[[Size], Any]

    @classmethod
    def of_body(cls, body: Body, dtype: DType) -> Arithmetic:
        return cls(body.math, lambda value: body.constant(value, dtype), lambda size: body.position(size, dtype))

    @classmethod
    def of_numpy(cls, dtype: DType) -> Arithmetic:
        number: Any = dtype.numpy.type

        def apply(name: str, *values: Any) -> Any:
            return _NUMPY[name](*values)

        return cls(apply, number, number)

    @classmethod
    def of_graph(cls, b: GraphBuilder, dtype: DType) -> Arithmetic:
        def apply(name: str, *values: SSAValue) -> SSAValue:
            return b.emit(_GRAPH.get(name, name), *values)

        def number(value: float) -> SSAValue:
            return b.full(value=value, shape=(), dtype=dtype)

        return cls(apply, number, lambda size: size_value(b, size, dtype))


_NUMPY: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "abs": np.abs, "floor": np.floor},
    **{"round": np.rint, "fmod": np.fmod, "max": np.maximum, "min": np.minimum, "select": np.where},
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal},
    "and": np.logical_and,
}
_GRAPH = {"max": "maximum", "min": "minimum", "select": "where", "and": "logical_and"}
"""Functions whose graph op has another name."""


def cubic_weights(arithmetic: Arithmetic, share: Any, a: float) -> list[Any]:
    """The weights of the elements 1 before, 0, 1 and 2 after a place that is `share` beyond element 0."""
    apply, number = arithmetic.apply, arithmetic.number
    rest = apply("sub", number(1), share)

    def near(t: Any) -> Any:
        inner = apply("sub", apply("mul", number(a + 2), t), number(a + 3))
        return apply("add", apply("mul", apply("mul", inner, t), t), number(1))

    def far(t: Any, u: Any) -> Any:
        # a·(d³ - 5d² + 8d - 4) at the distance d = 1 + t, as factors: there nothing cancels.
        return apply("mul", apply("mul", apply("mul", number(a), t), u), u)

    return [far(share, rest), near(share), near(rest), far(rest, share)]


def cubic_slopes(arithmetic: Arithmetic, share: Any, a: float) -> list[Any]:
    """The derivatives of `cubic_weights` in `share`."""
    apply, number = arithmetic.apply, arithmetic.number
    rest = apply("sub", number(1), share)

    def near(t: Any, sign: int) -> Any:
        inner = apply("sub", apply("mul", number(sign * 3 * (a + 2)), t), number(sign * 2 * (a + 3)))
        return apply("mul", inner, t)

    def far(t: Any, u: Any, sign: int) -> Any:
        inner = apply("sub", u, apply("mul", number(2), t))
        return apply("mul", apply("mul", number(sign * a), u), inner)

    return [far(share, rest, 1), near(share, 1), near(rest, -1), far(rest, share, -1)]
