"""Which part of a tensor an op writes, and which parts others read of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.expr import Size, is_nonnegative
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.graph import GroupOp
from weft.ops.indexing.scatter import UpdateSlice
from weft.ops.shape import Slice


@dataclass(frozen=True)
class TensorSlice:
    """A slice of a tensor."""

    starts: tuple[Size, ...]
    steps: tuple[int, ...]
    shape: tuple[Size, ...]

    def is_apart_from(self, other: TensorSlice) -> bool:
        """Whether the two have no element in common, as far as can be told: in one dimension, one ends earlier."""
        pairs = [
            pair for one, two in zip(self._ranges(), other._ranges(), strict=True) for pair in ((one, two), (two, one))
        ]
        return any(is_nonnegative(second[0] - first[1] - 1) for first, second in pairs)

    def _ranges(self) -> list[tuple[Size, Size]]:
        """The first and the last place in each dimension."""
        ends = [
            start + step * (size - 1) for start, step, size in zip(self.starts, self.steps, self.shape, strict=True)
        ]
        return [(a, b) if step > 0 else (b, a) for a, b, step in zip(self.starts, ends, self.steps, strict=True)]


def updated_slice(group: GroupOp) -> UpdateSlice | None:
    """The update of a slice of an operand that is all that leaves a group."""
    if len(group.yielded) != 1:
        return None
    (value,) = group.yielded
    if not isinstance(value, OpResult) or not isinstance(update := value.op, UpdateSlice):
        return None
    return update if update.operands[0] in group.block.args else None


def part_written(update: UpdateSlice) -> TensorSlice:
    """The part of its first operand that an update changes."""
    return TensorSlice(update.params["starts"], update.params["steps"], tensor_of(update.operands[1].type).shape)


def reads_of(value: SSAValue) -> Iterator[tuple[Operation, TensorSlice | None]]:
    """Who reads a value, directly or through views, and which part of it; None where that is not known.

    What is read through several views is a part of what the first one shows: only that one's slice is one of the value.
    """
    for use in value.uses:
        reader = use.operation
        if isinstance(reader, View):
            part = _sliced(reader)
            yield reader, part
            yield from ((later, part) for later in _readers(reader.results[0]))
        elif isinstance(reader, GroupOp):
            inside = list(reader.block.args[use.index].uses)
            yield from ((reader, _sliced(each.operation)) for each in inside)
        else:
            yield reader, None


def _readers(value: SSAValue) -> Iterator[Operation]:
    for use in value.uses:
        yield use.operation
        if isinstance(use.operation, View):
            yield from _readers(use.operation.results[0])


def _sliced(op: Operation) -> TensorSlice | None:
    return TensorSlice(op.params["starts"], op.params["steps"], op.params["shape"]) if isinstance(op, Slice) else None


def views_from(value: SSAValue) -> tuple[SSAValue, list[GraphOp]]:
    """What a value is a view of, and the views that lead from there to it."""
    views: list[GraphOp] = []
    while isinstance(value, OpResult) and isinstance(value.op, View):
        views.insert(0, value.op)
        value = value.op.operands[0]
    return value, views
