"""A rule of `simplify` for what is taken apart along its last dimension, seen in another way, and put together again.

Views of complex numbers are such: each of their two parts is seen in the new way.
"""

from __future__ import annotations

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import GraphBuilder
from weft.passes.simplify.constant_values import made_by

_VIEWS = frozenset(f"graph.{name}" for name in ("reshape", "permute", "slice", "broadcast"))


def rejoined(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """What all parts were slices of, seen as each of them is.

    %r = graph.permute (graph.reshape (graph.slice %x [0:n, 0:1])) [1, 0]
    %i = graph.permute (graph.reshape (graph.slice %x [0:n, 1:2])) [1, 0]        %s = graph.reshape %x
    %y = graph.concat (graph.reshape %r), (graph.reshape %i)                →    %y = graph.permute %s [1, 0, 2]
    """
    count, shape = len(op.operands), tensor_of(op.results[0].type).shape
    if op.params["dim"] != len(shape) - 1 or shape[-1] != count:
        return None
    ways = [_way_to(part, number, count) for number, part in enumerate(op.operands)]
    first, *others = ways
    if first is None or any(other is None or not _is_alike(first, other) for other in others):
        return None
    piece, *views = first
    value, sizes = piece.operands[0], piece.params["shape"]
    starts, steps = ((*piece.params[name][:-1], last) for name, last in (("starts", 0), ("steps", 1)))
    if (*sizes[:-1], count) != b.tensor(value).shape:
        value = b.slice(value, starts=starts, shape=(*sizes[:-1], count), steps=steps)
    value = _reshaped(b, value, (*sizes, count))
    for view in views:
        value = _seen(b, value, view, count)
    return _reshaped(b, value, shape)


def _way_to(part: SSAValue, number: int, count: int) -> tuple[GraphOp, ...] | None:
    """The slice that takes the part of that number, and the views of it."""
    views: list[GraphOp] = []
    while isinstance(part, OpResult) and isinstance(view := part.op, GraphOp) and view.name in _VIEWS:
        views.append(view)
        part = view.operands[0]
        whole = tensor_of(part.type).shape
        if view.name == "graph.slice" and whole[-1:] == (count,):
            is_part = (view.params["starts"][-1], view.params["shape"][-1]) == (number, 1)
            return tuple(reversed(views)) if is_part else None
    return None


def _is_alike(way: tuple[GraphOp, ...], other: tuple[GraphOp, ...]) -> bool:
    """Whether two ways begin at one value, and are the same but for the part that they take of it."""
    (first, *views), (second, *theirs) = way, other
    if first.operands[0] is not second.operands[0] or len(views) != len(theirs):
        return False
    here, there = (
        (each.params["starts"][:-1], each.params["shape"], each.params["steps"][:-1]) for each in (first, second)
    )
    return here == there and all(x.name == y.name and x.params == y.params for x, y in zip(views, theirs, strict=True))


def _seen(b: GraphBuilder, value: SSAValue, view: GraphOp, count: int) -> SSAValue:
    """All parts, along a last dimension, as a view shows one."""
    match view.name:
        case "graph.permute":
            dims: tuple[int, ...] = view.params["dims"]
            return b.permute(value, dims=(*dims, len(dims)))
        case "graph.slice":
            starts, shape, steps = (view.params[name] for name in ("starts", "shape", "steps"))
            return b.slice(value, starts=(*starts, 0), shape=(*shape, count), steps=(*steps, 1))
        case "graph.broadcast":
            return b.broadcast(value, shape=(*view.params["shape"], count))
        case _:
            return _reshaped(b, value, (*view.params["shape"], count))


def _reshaped(b: GraphBuilder, value: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
    while (inner := made_by(value, "graph.reshape")) is not None:
        value = inner.operands[0]
    return value if b.tensor(value).shape == shape else b.reshape(value, shape=shape)
