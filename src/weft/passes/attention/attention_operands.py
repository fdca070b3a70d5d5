"""The queries, keys and values of written-out attention: what its matmuls read before it was widened and scaled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, f16, tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.graph import GraphBuilder
from weft.ops.matmul.dot import transposed
from weft.passes.simplify.arithmetic_rules import holds
from weft.passes.simplify.constant_values import made_by, number_of


@dataclass(frozen=True)
class Factor:
    """A factor of a matmul: a number times what `views`, the outermost first, are views of."""

    root: SSAValue
    scale: float
    views: tuple[GraphOp, ...] = ()

    @property
    def dtype(self) -> DType:
        return tensor_of(self.root.type).dtype

    def seen(self, b: GraphBuilder) -> SSAValue:
        """The factor without its number."""
        value = self.root
        for view in reversed(self.views):
            value = b.emit(view.name.removeprefix("graph."), value, **view.params)
        return value


_LEAST_SCALE = 1 / 64
"""Numbers between this and 1 leave those of f16 within its range, so that only the last bits are rounded."""


def factor_of(value: SSAValue, dtypes: Collection[DType], *, scaled: bool = True) -> Factor:
    """What lies deepest of a value that was cast among floats, viewed and, if it may be `scaled`, times numbers.

    It is of one of the types, if there is such. That matmuls with numbers were rounded to its own type does not count:
    the kernel scales scores, in f32. Values that were rounded to another type stay so, which is what somebody wants.
    """
    found, scale = Factor(value, 1.0), 1.0
    views: list[GraphOp] = []
    rounded: DType | None = None  # what matmuls with numbers were rounded to, until one finds what was multiplied
    while (step := _step(value)) is not None:
        if isinstance(step, View):
            views.append(step)
            value = step.operands[0]
            continue
        factor = times_number(step)
        source, result = (tensor_of(x.type).dtype for x in (step.operands[0], value))
        if factor is not None:
            if not scaled or (f16 in (result, rounded) and not _LEAST_SCALE <= abs(factor[1]) <= 1):
                break
            value, by = factor
            scale *= by
        else:
            if not holds(result, source):
                if rounded is not None or result.bits < 16:
                    break
                rounded = result
            value = step.operands[0]
            if rounded is not None and holds(rounded, source):
                rounded = None
        if rounded is None and tensor_of(value.type).dtype in dtypes:
            found = Factor(value, scale, tuple(views))
    return found


def _step(value: SSAValue) -> GraphOp | None:
    """The op that makes a value, if it is a view, a cast among floats or a multiplication by a number."""
    step = made_by(value, "graph.reshape", "graph.broadcast", "graph.permute", "graph.cast", "graph.mul", "graph.div")
    if step is None or isinstance(step, View):
        return step
    if step.name == "graph.cast":
        return step if tensor_of(step.operands[0].type).dtype.is_float else None
    factor = times_number(step)
    return step if factor is not None and tensor_of(factor[0].type) == tensor_of(value.type) else None


def times_number(step: GraphOp) -> tuple[SSAValue, float] | None:
    """The operand and the number of a multiplication by a number."""
    if step.name not in ("graph.mul", "graph.div"):
        return None
    x, y = step.operands
    number = number_of(y)
    if number is not None:
        return (x, float(number)) if step.name == "graph.mul" else (x, 1 / number) if number else None
    number = number_of(x) if step.name == "graph.mul" else None
    return None if number is None else (y, float(number))


def uncast(value: SSAValue) -> SSAValue:
    cast = made_by(value, "graph.cast")
    return value if cast is None else cast.operands[0]


def reshaped(b: GraphBuilder, x: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
    view = made_by(x, "graph.reshape")
    source = x if view is None else view.operands[0]
    return source if tensor_of(source.type).shape == shape else b.reshape(source, shape=shape)


def untransposed(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """A matrix that was transposed for a matmul, as it was."""
    view = made_by(x, "graph.permute")
    rank = tensor_of(x.type).rank
    if view is not None and view.params["dims"] == (*range(rank - 2), rank - 1, rank - 2):
        return view.operands[0]
    return transposed(b, x)
