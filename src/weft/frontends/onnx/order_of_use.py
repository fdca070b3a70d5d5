"""One order for the ops and constants of a stage: that in which results need them.

An array that sizes decide is computed at import where it is small, and its ops stand where it is first read; where it
is large they stand where its node does. Stages that say the same are then the same, also in their order.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from weft.ops.graph import ReturnOp


def sort_by_use(block: Block, sources: Sequence[int | np.ndarray]) -> list[int | np.ndarray]:
    """Put ops behind what they read, in the order of the results, and constants behind slots in that order.

    `sources` are those of the block's arguments; what comes back are those of its new ones.
    """
    last = block.last_op
    assert isinstance(last, ReturnOp), "finished"
    ops, constants = _needed(last)
    for op in (*ops, last):
        op.detach()
    block.add_ops([*ops, last])
    slots = [argument for argument in block.args if isinstance(sources[argument.index], int)]
    rest = [argument for argument in constants if not isinstance(sources[argument.index], int)]
    wanted = [*slots, *rest]
    ordered = [sources[argument.index] for argument in wanted]
    if [argument.index for argument in wanted] != list(range(len(block.args))):
        given = tuple(block.args)
        for argument in wanted:
            made = block.insert_arg(argument.type, len(block.args))
            made.name_hint = argument.name_hint
            argument.replace_all_uses_with(made)
        for argument in given:
            block.erase_arg(argument)
    return ordered


def _needed(last: Operation) -> tuple[list[Operation], list[BlockArgument]]:
    """What an op needs, each behind what it needs itself, and the arguments in the order in which they are read."""
    ops: list[Operation] = []
    arguments: dict[BlockArgument, None] = {}
    seen: set[Operation] = {last}
    stack: list[tuple[Operation, int]] = [(last, 0)]
    while stack:
        op, place = stack.pop()
        if place == len(op.operands):
            if op is not last:
                ops.append(op)
            continue
        stack.append((op, place + 1))
        value: SSAValue = op.operands[place]
        owner = value.owner
        if isinstance(value, BlockArgument):
            arguments[value] = None
        elif isinstance(owner, Operation) and owner not in seen:
            seen.add(owner)
            stack.append((owner, 0))
    return ops, list(arguments)
