"""Let the kernel that reads a value compute it, where the kernel of a matmul would write more than it has to.

The epilogue of a matmul takes in every op that follows at the same index. What it then writes for others may be no
more than a wider copy of another result, or cheap to make of one:

    group { %p = dot; %x = add %p, %r; %w = cast %x; %s = mul %w, %w } → %x, %w, %s     10 bytes an element, with bf16
    group { %n = sum %s; ... %w ... }

becomes

    group { %p = dot; %x = add %p, %r } → %x                                            2 bytes
    group { %w = cast %x; %s = mul %w, %w; %n = sum %s; ... %w ... }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.passes.grouping.kernel_groups import Group

Reads = Callable[[GraphOp, Group], bool]
"""Whether an op reads a group's values at its own index."""


def sink_epilogue(
    group: Group,
    group_of: dict[Operation, Group],
    consumers: Mapping[SSAValue, Sequence[Operation]],
    reads_in_place: Reads,
) -> None:
    """Move ops from the end of a matmul's group to the only group that reads them, if less is written so."""

    def is_needed(value: SSAValue) -> bool:
        """Whether a value of the group is written for others."""
        return any(group_of.get(user) is not group for user in consumers.get(value, ()))

    for op in reversed(group.ops[1:]):
        if not isinstance(op, Elementwise) or len(op.results) != 1:
            continue
        (result,) = op.results
        users = consumers.get(result, ())
        readers = {group_of.get(user) for user in users}  # None is who returns it
        reader = readers.pop() if len(readers) == 1 else None
        if reader is None or reader is group:
            continue
        added = {value for value in op.operands if value in group.made and not is_needed(value)}
        if sum(map(_bytes, added)) >= _bytes(result) or not _takes(reader, op, users, reads_in_place):
            continue
        group.ops.remove(op)
        group.made.discard(result)
        group_of[op] = reader


def _takes(reader: Group, op: GraphOp, users: Sequence[Operation], reads_in_place: Reads) -> bool:
    """Give a group an op whose result it reads, if it can compute it."""
    (result,) = op.results
    if reader.kind not in ("pointwise", "rows") or reader.shape != tensor_of(result.type).shape:
        return False
    reader.made.add(result)
    if all(isinstance(user, GraphOp) and reads_in_place(user, reader) for user in users):
        reader.ops.insert(0, op)
        return True
    reader.made.discard(result)
    return False


def _bytes(value: SSAValue) -> int:
    """What a value takes; all of them have the same elements but for those that are broadcast."""
    tensor = tensor_of(value.type)
    elements = product(tensor.shape)
    return tensor.dtype.bytes * (elements if isinstance(elements, int) else 1)
