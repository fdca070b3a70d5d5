"""Which arguments a kernel writes through: read off its tile IR, where branches that are not taken are gone already.

An address that a number was made of is followed back to the arguments whose addresses went into it. What is loaded from
memory is no argument's address.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from weft.tile import dialect as tile
from weft.tile import pointer_ops


def written_arguments(kernel: tile.KernelOp) -> tuple[int, ...]:
    """The numbers of the arguments that the kernel stores to, or changes by an atomic operation."""
    found: set[int] = set()
    seen: set[SSAValue] = set()
    waiting: list[SSAValue] = []
    for op in kernel.walk():
        match op:
            case tile.ScatterOp() | pointer_ops.AtomicOp():
                waiting.append(op.pointer)
                if not _is_argument(op.pointer, kernel):
                    waiting.append(op.offsets)
            case _:
                continue
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, BlockArgument) and _is_argument(value, kernel):
            if isinstance(value.type, tile.PointerType):
                found.add(value.index)
        else:
            waiting.extend(_origins(value))
    return tuple(sorted(found))


def _is_argument(value: SSAValue, kernel: tile.KernelOp) -> bool:
    return isinstance(value, BlockArgument) and value.block is kernel.block


def _origins(value: SSAValue) -> Iterator[SSAValue]:
    """What a value is made of."""
    op: Operation | None = value.op if isinstance(value, OpResult) else value.owner.parent_op()  # type: ignore[union-attr]
    if op is None or isinstance(op, tile.GatherOp | pointer_ops.AtomicOp):
        return
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            if block.last_op is not None:
                yield from block.last_op.operands
