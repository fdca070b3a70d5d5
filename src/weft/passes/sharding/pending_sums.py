"""Which ops a pending sum goes through: those that are linear in the operand of which ranks hold summands."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.expr import product
from weft.ir.sharding import Sharding
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.shape import Broadcast

Partial = tuple[tuple[str, str], ...]

_LINEAR = ("graph.copy", "graph.neg", "graph.concat")
_SUMS = ("graph.add", "graph.sub")


def partial_through(op: GraphOp, operands: Sequence[Sharding]) -> Partial | None:
    """The sums that stay pending in the op's result; None where they have to be carried out before it.

    a [] sum {tp} + b [] sum {tp}   →   [] sum {tp}: two sums, one reduction
    """
    pending = [sharding.partial for sharding in operands]
    first = next((partial for partial in pending if partial), ())
    if not first or any(kind not in ("sum", "owner") for _, kind in first) or len(op.results) != 1:
        return None
    if not tensor_of(op.results[0].type).dtype.is_float:
        return None
    summands = [value for value, partial in zip(op.operands, pending, strict=True) if partial]
    if any(len({use.operation for use in value.uses}) > 1 for value in summands):
        return None  # each of the readers would have a sum of its own to carry out
    same = all(partial == first for partial in pending)
    if isinstance(op, View) and not isinstance(op, Broadcast) and len(operands) == 1:
        return first
    if same and (op.name in _LINEAR or op.name == "graph.sum"):
        return first
    if same and op.name in _SUMS and not _is_broadcast(op):
        return first
    if same and op.name == "graph.pad" and op.params["value"] == 0:
        return first
    scales = op.name == "graph.mul" or (op.name == "graph.div" and pending[0])
    if scales and sum(map(bool, pending)) == 1:
        # A factor that all ranks have; the product is no larger than the summands.
        number = next(n for n, partial in enumerate(pending) if partial)
        if tensor_of(op.operands[number].type).shape == tensor_of(op.results[0].type).shape:
            return first
    return None


def _is_broadcast(op: GraphOp) -> bool:
    sizes = {product(tensor_of(value.type).shape) for value in (*op.operands, *op.results)}
    return len(sizes) > 1
