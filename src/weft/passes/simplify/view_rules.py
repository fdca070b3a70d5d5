"""Rules of `simplify` for ops that move elements: views that cancel, join or show a constant."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import GraphBuilder
from weft.passes.simplify.constant_values import made_by, number_of
from weft.passes.simplify.padding_rules import wrapped
from weft.passes.simplify.rejoined_parts import rejoined


def _unchanged(op: GraphOp) -> bool:
    return op.operands[0].type == op.results[0].type


def _filled(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """A view of a constant is a constant."""
    number = number_of(op.operands[0])
    tensor = tensor_of(op.results[0].type)
    return None if number is None else b.full(value=number, shape=tensor.shape, dtype=tensor.dtype)


def _reshape(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    if _unchanged(op):
        return op.operands[0]
    inner = made_by(op.operands[0], "graph.reshape")
    return _filled(b, op) if inner is None else b.reshape(inner.operands[0], **op.params)


def _permute(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    (x,) = op.operands
    dims: tuple[int, ...] = op.params["dims"]
    if dims == tuple(range(len(dims))):
        return x
    shape = b.tensor(x).shape
    moved = [d for d in dims if shape[d] != 1]
    if moved == sorted(moved):
        return b.reshape(x, shape=tuple(shape[d] for d in dims))
    inner = made_by(x, "graph.permute")
    if inner is None:
        return _filled(b, op)
    return b.permute(inner.operands[0], dims=tuple(inner.params["dims"][d] for d in dims))


def _broadcast(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    (x,) = op.operands
    if _unchanged(op):
        return x
    shape = op.params["shape"]
    if (inner := made_by(x, "graph.broadcast")) is not None:
        return b.broadcast(inner.operands[0], shape=shape)
    kept = b.tensor(x).shape
    if shape == (*(1,) * (len(shape) - len(kept)), *kept):
        return b.reshape(x, shape=shape)
    return _filled(b, op)


def _slice(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    (x,) = op.operands
    starts, shape, steps = (op.params[name] for name in ("starts", "shape", "steps"))
    if _unchanged(op) and all(step == 1 or size == 1 for step, size in zip(steps, shape, strict=True)):
        return x
    if (inner := made_by(x, "graph.slice")) is not None:
        outer = zip(starts, steps, inner.params["starts"], inner.params["steps"], strict=True)
        joined = [(low + start * by, step * by) for start, step, low, by in outer]
        return b.slice(
            inner.operands[0], starts=tuple(s for s, _ in joined), shape=shape, steps=tuple(s for _, s in joined)
        )
    if (line := made_by(x, "graph.iota")) is not None:
        params = line.params
        first, by, dim = params.get("start", 0), params.get("step", 1), params["dim"]
        if not isinstance(first, float) and not isinstance(by, float):
            start, step = first + starts[dim] * by, by * steps[dim]
            return b.iota(shape=shape, dim=dim, dtype=params["dtype"], start=start, step=step)
    return _filled(b, op)


def _concat(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    dim = op.params["dim"]
    parts = [x for x in op.operands if b.tensor(x).shape[dim] != 0]
    if len(parts) == 1:
        return parts[0]
    if (whole := rejoined(b, op)) is not None:
        return whole
    return b.concat(*parts, dim=dim) if 0 < len(parts) < len(op.operands) else None


def _pad(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    return op.operands[0] if _unchanged(op) else None


def _update_slice(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """A part of a constant that is replaced is padded with it: whoever pads can compute the part, too.

    Paddings that wrap around are written by updates, as well.
    """
    whole, update = op.operands
    number = number_of(whole)
    starts, steps = op.params["starts"], op.params["steps"]
    if number is None:
        return wrapped(b, op)
    if any(step != 1 for step in steps):
        return None
    sizes = zip(b.tensor(whole).shape, starts, b.tensor(update).shape, strict=True)
    high = tuple(size - start - part for size, start, part in sizes)
    return b.pad(update, low=tuple(starts), high=high, value=number)


def _reduced(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """A reduction over nothing, or over dimensions of one element each, combines nothing."""
    (x,) = op.operands
    dims: tuple[int, ...] = op.params["dims"]
    if any(b.tensor(x).shape[d] != 1 for d in dims):
        return None
    shape = tensor_of(op.results[0].type).shape
    return x if b.tensor(x).shape == shape else b.reshape(x, shape=shape)


def _take(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """Rows of rows that were taken are taken at once: the numbers of rows are less to move than the rows."""
    x, places = op.operands
    inner = made_by(x, "graph.take")
    if inner is None or op.params["dim"] != 0 or inner.params["dim"] != 0 or b.tensor(x).rank < 2:
        return None
    source, first = inner.operands
    return b.take(source, b.take(first, places, dim=0), dim=0) if b.tensor(first).rank == 1 else None


RULES: dict[str, Callable[[GraphBuilder, GraphOp], SSAValue | None]] = {
    "graph.reshape": _reshape,
    "graph.permute": _permute,
    "graph.broadcast": _broadcast,
    "graph.slice": _slice,
    "graph.concat": _concat,
    "graph.pad": _pad,
    "graph.take": _take,
    "graph.update_slice": _update_slice,
    **dict.fromkeys(("graph.sum", "graph.prod", "graph.max", "graph.min", "graph.any", "graph.all"), _reduced),
}
