"""Groups made from a group: what a lowering into several kernels gives to each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Region, SSAValue

from weft.ir.types import Tensor, tensor_type
from weft.ops.graph import GraphBuilder, GroupOp, YieldOp


def regroup(group: GroupOp, make: Callable[[GraphBuilder, GroupOp], Sequence[SSAValue]]) -> GroupOp:
    """A copy of a group that yields what `make` picks from it or adds to it, without the ops that do not lead there."""
    made = group.clone()
    last = made.block.last_op
    assert last is not None
    values = make(GraphBuilder(made.block, before=last), made)
    made.block.insert_op_before(YieldOp.create(operands=values), last)
    last.detach()
    last.erase()
    for op in reversed(list(made.block.ops)):
        if op.results and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    return made


def drop_unused(group: GroupOp) -> list[int]:
    """Take the operands that a group does not read from it; the numbers of those that stay."""
    used = [number for number, argument in enumerate(group.block.args) if argument.uses]
    for argument in reversed(list(group.block.args)):
        if not argument.uses:
            group.block.erase_arg(argument)
    return used


def new_group(tensors: Sequence[Tensor], make: Callable[..., Sequence[SSAValue]]) -> GroupOp:
    """A group with the given operands that yields what `make(b, *operands)` computes."""
    block = Block(arg_types=[tensor_type(tensor) for tensor in tensors])
    b = GraphBuilder(block)
    b.insert(YieldOp.create(operands=make(b, *block.args)))
    return GroupOp.create(regions=[Region(block)])
