"""Kernels that sum up between other dimensions: what they compute beside their sums, so that they read little.

One computes what it sums, where that is less to read:

    group { …; %x = …; %p = mul (cast %x), (cast %y) } → %x, %p        written and read in f32: 8 bytes an element
    group { %s = sum %p dims=[1] }

becomes

    group { …; %x = … } → %x
    group { %p = mul (cast %x), (cast %y); %s = sum %p dims=[1] }      read in bf16, twice: 4 bytes

Two that sum up along the same dimensions, and read one tensor, become one; and what a kernel does row by row stays out
of them: it would have to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.fusion_legality import MOST_OPS
from weft.passes.grouping.kernel_groups import Group


@dataclass(frozen=True)
class SinkToSums:
    """What is needed of a function's grouping to move ops from one kernel to another."""

    group_of: dict[Operation, Group]
    consumers: Mapping[SSAValue, Sequence[Operation]]
    sources: Callable[[Iterable[SSAValue]], Iterable[SSAValue]]
    """What values are computed from, seen through views and cheap constants."""
    reads_in_place: Callable[[GraphOp, Group], bool]

    def run(self, group: Group) -> None:
        """Move what one such kernel alone reads, and what is computed for that alone, to it."""
        for op in reversed(group.ops):
            if op in group.ops and isinstance(op, Elementwise) and op.results[0] not in group.finished:
                self._sink(op, group)

    def _sink(self, op: Elementwise, group: Group) -> None:
        (result,) = op.results
        users = self.consumers.get(result, ())
        readers = {self.group_of.get(user) for user in users}  # None is who returns it
        reader = readers.pop() if len(readers) == 1 else None
        if reader is None or reader is group or not reader.walks_between:
            return
        if reader.shape != tensor_of(result.type).shape or len(reader.ops) >= MOST_OPS // 2:
            return
        alone = self._made_for(op, group)
        cost, moved = min(
            ((self._cost(ops, group, reader), ops) for ops in ([op], alone)), key=lambda each: (each[0], len(each[1]))
        )
        whole = len(moved) == len(group.ops)
        if whole or cost >= 2 * _bytes(result) or not self._takes(reader, moved, users):
            return
        read = self._read_by(moved)
        for each in moved:
            group.ops.remove(each)
            group.made.difference_update(each.results)
            self.group_of[each] = reader
        reader.read = (reader.read | read) - reader.made

    def _read_by(self, ops: Sequence[GraphOp]) -> set[SSAValue]:
        """What ops read that they do not make."""
        made = {result for each in ops for result in each.results}
        return {value for each in ops for value in self.sources(each.operands)} - made

    def _cost(self, ops: Sequence[GraphOp], group: Group, reader: Group) -> int:
        """The bytes that a kernel reads more with ops of another group, and those that this group writes for it; less
        what it need not read itself."""
        read = self._read_by(ops)
        added = (value for value in read & group.made if not self._is_needed(value, group))
        spared = read - group.made - self._read_by([op for op in group.ops if op not in ops])
        return sum(map(_bytes, read - reader.read)) + sum(map(_bytes, added)) - sum(map(_bytes, spared))

    def _made_for(self, op: Elementwise, group: Group) -> list[GraphOp]:
        """An op, and the elementwise ones of its group that are there for it alone, last ones first."""
        moved: list[GraphOp] = [op]
        for each in reversed(group.ops[: group.ops.index(op)]):
            users = [user for result in each.results for user in self.consumers.get(result, ())]
            shape = tensor_of(each.results[0].type).shape
            if isinstance(each, Elementwise) and shape == group.shape and users and all(u in moved for u in users):
                moved.append(each)
        return moved

    def _is_needed(self, value: SSAValue, group: Group) -> bool:
        """Whether a value of the group is written for others."""
        return any(self.group_of.get(user) is not group for user in self.consumers.get(value, ()))

    def _takes(self, reader: Group, moved: Sequence[GraphOp], users: Sequence[Operation]) -> bool:
        """Give a kernel ops whose result it reads, if it can compute them."""
        made = {result for each in moved for result in each.results}
        reader.made |= made
        if all(isinstance(user, GraphOp) and self.reads_in_place(user, reader) for user in (*users, *moved)):
            reader.ops[:0] = reversed(moved)
            return True
        reader.made -= made
        return False


def is_for(op: Operation, group: Group, consumers: Mapping[SSAValue, Sequence[Operation]]) -> bool:
    """Whether an op may be part of a kernel for what it reads: of one that sums up so, if it goes into nothing else."""
    if not group.walks_between:
        return True
    waiting: list[Operation] = [op]
    seen = {op}
    while waiting:
        each = waiting.pop()
        if isinstance(each, DimensionReduction):
            if each.params["dims"] != group.dims:
                return False
            continue
        users = [user for result in each.results for user in consumers.get(result, ())]
        if not users or not isinstance(each, Elementwise):
            return False
        waiting += [user for user in users if user not in seen]
        seen.update(users)
    return True


def joined_sums(groups: Iterable[Group]) -> Iterator[tuple[Group, Group]]:
    """Kernels that sum up between the same dimensions and read one tensor, to become one: the caller merges each pair
    that is given before it asks for the next."""
    walking = [group for group in groups if group.walks_between]
    while walking:
        first = walking.pop(0)
        for other in list(walking):
            alike = first.shape == other.shape and first.dims == other.dims
            waits = first.number in other.before or other.number in first.before
            if alike and not waits and len(first.ops) + len(other.ops) <= MOST_OPS and _share_whole(first, other):
                walking.remove(other)
                yield first, other


def _share_whole(one: Group, other: Group) -> bool:
    """Whether two kernels read a tensor of all their elements."""
    return any(product(tensor_of(value.type).shape) == product(one.shape) for value in one.read & other.read)


def _bytes(value: SSAValue) -> int:
    tensor = tensor_of(value.type)
    elements = product(tensor.shape)
    return tensor.dtype.bytes * (elements if isinstance(elements, int) else 1)
