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

    def polynomial(self, t: Any, *coefficients: float) -> Any:
        """The value at `t`, by Horner's scheme; the highest power's coefficient comes first."""
        value = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.apply("add", self.apply("mul", value, t), self.number(coefficient))
        return value

    def around(self, share: Any) -> tuple[Any, Any, Any]:
        """How far a place `share` beyond element 0 is from the elements 1 before, 1 after and 2 after it."""
        after = self.apply("sub", self.number(1), share)
        return self.apply("add", share, self.number(1)), after, self.apply("add", after, self.number(1))


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
    far, near = (a, -5 * a, 8 * a, -4 * a), (a + 2, -(a + 3), 0, 1)
    before, after, beyond = arithmetic.around(share)
    polynomial = arithmetic.polynomial
    return [polynomial(before, *far), polynomial(share, *near), polynomial(after, *near), polynomial(beyond, *far)]


def cubic_slopes(arithmetic: Arithmetic, share: Any, a: float) -> list[Any]:
    """The derivatives of `cubic_weights` in `share`."""
    far, near = (3 * a, -10 * a, 8 * a), (3 * (a + 2), -2 * (a + 3), 0)
    before, after, beyond = arithmetic.around(share)
    mirrored = [arithmetic.polynomial(after, *near), arithmetic.polynomial(beyond, *far)]
    return [
        arithmetic.polynomial(before, *far),
        arithmetic.polynomial(share, *near),
        *(arithmetic.apply("sub", arithmetic.number(0), slope) for slope in mirrored),
    ]
