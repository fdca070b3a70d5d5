"""Rules of `simplify` for paddings that frameworks write piece by piece: such as wrap around, and halves of a whole."""

from __future__ import annotations

from typing import NamedTuple

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Expr, Size, is_nonnegative
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import GraphBuilder
from weft.passes.simplify.constant_values import made_by, number_of


class _CopiedSlab(NamedTuple):
    """A tensor in which the elements of a dimension from one place are also written to another."""

    whole: SSAValue
    dim: int
    target: Size
    source: Size
    length: Size


def wrapped(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """Ends of a dimension that are copies of what stands at the other end of its middle are a padding that wraps.

    %a = graph.update_slice %x, %x[5:7], starts = [0]
    %b = graph.update_slice %a, %a[2:5], starts = [7]     →     %b = graph.pad_mode %x[2:7], low = 2, high = 3, wrap
    """
    copied = _copied_slab(op)
    if copied is None:
        return None
    whole, dim, target, source, count = copied
    size = tensor_of(whole.type).shape[dim]
    if target == 0 and source + count == size:
        return _wrap(b, whole, dim, count, 0)
    if target + count != size:
        return None
    if source == 0:
        return _wrap(b, whole, dim, 0, count)
    before = made_by(whole, "graph.update_slice")
    first = None if before is None else _copied_slab(before)
    if first is None or (first.dim, first.target, first.length) != (dim, 0, source) or first.source != target - source:
        return None
    return _wrap(b, first.whole, dim, source, count)


def _copied_slab(op: GraphOp) -> _CopiedSlab | None:
    """What an update of a tensor by a slice of its own along one dimension copies."""
    whole, update = op.operands
    read = made_by(update, "graph.slice")
    if read is None or read.operands[0] is not whole:
        return None
    if any(step != 1 for each in (op, read) for step in each.params["steps"]):
        return None
    shape, part = tensor_of(whole.type).shape, tensor_of(update.type).shape
    dims = [d for d, (size, count) in enumerate(zip(shape, part, strict=True)) if size != count]
    if len(dims) != 1:
        return None
    (dim,) = dims
    return _CopiedSlab(whole, dim, op.params["starts"][dim], read.params["starts"][dim], part[dim])


def _wrap(b: GraphBuilder, whole: SSAValue, dim: int, low: Size, high: Size) -> SSAValue | None:
    """The middle of a dimension between ends, padded with what stands at its other ends."""
    shape = tensor_of(whole.type).shape
    middle = shape[dim] - low - high
    if not all(is_nonnegative(middle - count) for count in (low, high)):
        return None
    inner = _middle(b, whole, dim, low, high)
    lows, highs = ([count if d == dim else 0 for d in range(len(shape))] for count in (low, high))
    padded = made_by(inner, "graph.pad_mode")
    if padded is not None and padded.params["mode"] == "wrap" and _paddings(padded, dim) == (0, 0):
        inner = padded.operands[0]
        lows = [mine + own for mine, own in zip(lows, padded.params["low"], strict=True)]
        highs = [mine + own for mine, own in zip(highs, padded.params["high"], strict=True)]
    return b.pad_mode(inner, low=tuple(lows), high=tuple(highs), mode="wrap")


def _middle(b: GraphBuilder, whole: SSAValue, dim: int, low: Size, high: Size) -> SSAValue:
    """A tensor without the ends of a dimension: where it was padded by just these, it is not."""
    padded = made_by(whole, "graph.pad", "graph.pad_mode")
    if padded is not None and _paddings(padded, dim) == (low, high):
        params = padded.params
        for side in ("low", "high"):
            params[side] = tuple(0 if d == dim else count for d, count in enumerate(params[side]))
        changes = any(count != 0 for side in ("low", "high") for count in params[side])
        name = padded.name.removeprefix("graph.")
        return b.emit(name, padded.operands[0], **params) if changes else padded.operands[0]
    if padded is not None and padded.name == "graph.pad_mode" and _paddings(padded, dim) == (0, 0):
        return b.pad_mode(_middle(b, padded.operands[0], dim, low, high), **padded.params)
    shape = tensor_of(whole.type).shape
    starts = tuple(low if d == dim else 0 for d in range(len(shape)))
    sizes = tuple(size - low - high if d == dim else size for d, size in enumerate(shape))
    return b.slice(whole, starts=starts, shape=sizes, steps=(1,) * len(shape))


def _paddings(padded: GraphOp, dim: int) -> tuple[Size, Size]:
    return padded.params["low"][dim], padded.params["high"][dim]


def side_by_side(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """The sum of two halves of a whole, each padded with zeros, which are computed of the same elements.

    %y = graph.add (graph.pad %a, high = 8), (graph.pad %b, low = 8)     →     %y = graph.concat %a + 0, %b + 0

    Gradients of gated units are such sums. A concatenation's kernel reads what both are computed of once.
    """
    first, second = (made_by(operand, "graph.pad") for operand in op.operands)
    if first is None or second is None or first is second or first.params["value"] or second.params["value"]:
        return None
    if any(isinstance(each, Expr) for pad in (first, second) for side in ("low", "high") for each in pad.params[side]):
        return None
    if any(first.params["low"]):
        first, second = second, first
    ends = first.params["high"]
    dims = [dim for dim, count in enumerate(ends) if count]
    pieces = first.operands[0], second.operands[0]
    tensors = [tensor_of(piece.type) for piece in pieces]
    if len(dims) != 1 or any(first.params["low"]) or any(second.params["high"]) or tensors[0] != tensors[1]:
        return None
    if second.params["low"] != ends or ends[dims[0]] != tensors[0].shape[dims[0]]:
        return None
    if computed_of(pieces[0]).isdisjoint(computed_of(pieces[1])):
        return None
    # -0.0 + 0.0 is 0.0.
    zeros = (b.full_like(piece, 0) for piece in pieces)
    return b.concat(*(b.add(piece, zero) for piece, zero in zip(pieces, zeros, strict=True)), dim=dims[0])


def computed_of(value: SSAValue) -> set[SSAValue]:
    """What a value is computed of element by element, tensors of its own shape."""
    shape = tensor_of(value.type).shape
    found: set[SSAValue] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each in found or tensor_of(each.type).shape != shape:
            continue
        found.add(each)
        if isinstance(each, OpResult) and isinstance(each.op, Elementwise):
            waiting += each.op.operands
    return {each for each in found - {value} if number_of(each) is None}
