"""Where what rows are reduced to is spread over their elements for sums along other dimensions: in the kernel of these.

    %n = graph.sum %m dims=[2]                  @rows  %n, %d = %m * (%g / %n), written whole
    %d = graph.mul %m, (graph.div %g, %n)       @sums  %s, of %d read again
    %s = graph.sum %d dims=[0, 2]          →
                                                @rows  %n
                                                @sums  %s, of %m * (%g / %n) computed there

A kernel of rows would write every element that sums along other dimensions need, often several tensors of wide floats:
they are read again, where the rows' narrower operands could be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.kernel_groups import Group

_WORTH = 1 << 22
"""Bytes that are moved less from which on they take longer than what a second kernel waits."""


class SpreadRows:
    """Looks for such groups among those of a function; `sources` sees through views."""

    def __init__(
        self,
        group_of: Mapping[Operation, Group],
        consumers: Mapping[SSAValue, Sequence[Operation]],
        sources: Mapping[Operation, Collection[SSAValue]],
    ) -> None:
        self.group_of, self.consumers, self.sources = group_of, consumers, sources

    def of(self, group: Group) -> list[Operation]:
        """The ops of a group that spread what rows are reduced to, if they are better computed by who reads them."""
        if group.kind != "rows" or group.summed or not all(isinstance(size, int) for size in group.shape):
            return []
        needed = self._needed_for_rows(group)
        spread = [op for op in group.ops if op not in needed and self._is_whole(op, group)]
        written = [v for op in spread for v in op.results if any(self._outside(v, group))]
        if not written or not all(
            self._sums_otherwise(user, group) for v in written for user in self._outside(v, group)
        ):
            return []
        moved = {v for op in spread for v in self.sources[op]}
        kept = {
            v for v in moved if isinstance(v, OpResult) and v.op in needed and self._size(v) == product(group.shape)
        }
        read = {v for v in moved if v in group.read and self._size(v) == product(group.shape)}
        saved = 2 * self._bytes(written) - 2 * self._bytes(kept) - self._bytes(read)
        return [op for op in spread if self._reads_rows(op, group)] if saved >= _WORTH else []

    def _needed_for_rows(self, group: Group) -> set[Operation]:
        """The reductions of a group, and what they are of."""
        members, found = set[Operation](group.ops), set[Operation]()
        waiting: list[Operation] = [op for op in group.ops if isinstance(op, DimensionReduction)]
        while waiting:
            op = waiting.pop()
            if op not in found:
                found.add(op)
                waiting += [v.op for v in self.sources[op] if isinstance(v, OpResult) and v.op in members]
        return found

    def _is_whole(self, op: GraphOp, group: Group) -> bool:
        return isinstance(op, Elementwise) and tensor_of(op.results[0].type).shape == group.shape

    def _reads_rows(self, op: Operation, group: Group) -> bool:
        """Whether an op over all elements reads a number for each row that its kernel makes."""
        own = (v for v in self.sources[op] if v in group.made)
        return any(self._size(v) != product(group.shape) for v in own)

    def _outside(self, value: SSAValue, group: Group) -> Iterable[Operation]:
        return (user for user in self.consumers.get(value, ()) if self.group_of.get(user) is not group)

    def _sums_otherwise(self, user: Operation, group: Group) -> bool:
        other = self.group_of.get(user)
        return other is not None and other.kind == "rows" and other.shape == group.shape and other.dims != group.dims

    def _size(self, value: SSAValue) -> object:
        return product(tensor_of(value.type).shape)

    def _bytes(self, values: Iterable[SSAValue]) -> int:
        tensors = [tensor_of(value.type) for value in values]
        return sum(int(product(tensor.shape)) * tensor.dtype.bytes for tensor in tensors)  # type: ignore[arg-type]
