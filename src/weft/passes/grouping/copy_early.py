"""Moves copies that are results to where nothing else reads what they copy, so that this can be given back.

    %a = opaque …                       %a = opaque …
    %b = opaque …                       %p = group(%a) { permute }
    %p = group(%a) { permute }     →    %b = opaque …
    %q = group(%b) { permute }          %q = group(%b) { permute }
    return %p, %q                       return %p, %q

Side by side at the end, all copies would be one kernel, and everything would be there twice when it runs. Small copies
stay: there a launch costs more than the memory is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.ir.types import tensor_of
from weft.ops.base import View
from weft.ops.graph import GroupOp, ReturnOp

_LARGE = 1 << 20
"""Bytes from which on a copy is moved."""


def copy_early(block: Block, copies: Iterable[GroupOp]) -> None:
    """Move the large ones of a function's copies behind the last other op that reads what they copy."""
    large = [each for each in copies if _bytes_of(each.results[0]) >= _LARGE]
    if not large:
        return
    order = {op: number for number, op in enumerate(block.ops)}
    moved = set[Operation](large)
    for copy in large:
        touching: list[Operation] = []
        for operand in copy.operands:
            if not isinstance(operand, OpResult):
                break  # an argument is its caller's
            touching += [operand.op, *(op for op in _readers(operand) if op not in moved)]
        else:
            # What is a result itself stays to the end.
            if touching and not any(isinstance(op, ReturnOp) for op in touching):
                copy.detach()
                block.insert_op_after(copy, max(touching, key=order.__getitem__))


def _readers(value: SSAValue) -> Iterator[Operation]:
    """The ops that read a value, or a view of it."""
    for use in value.uses:
        yield use.operation
        if isinstance(use.operation, View):
            for result in use.operation.results:
                yield from _readers(result)


def _bytes_of(value: SSAValue) -> int:
    """What a value takes; nothing where its size is not known."""
    tensor, count = tensor_of(value.type), 1
    for size in tensor.shape:
        if not isinstance(size, int):
            return 0
        count *= size
    return count * tensor.dtype.bytes
