"""Left factors of dots that are rounded to 16 bits in registers, and carried from iteration to iteration as words."""

from __future__ import annotations

from xdsl.ir import BlockArgument, OpResult, SSAValue, Use

from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.wgmma import WgmmaOp
from weft.ir.types import DType
from weft.tile import dialect as tile


def register_operand(value: SSAValue, product: type[tile.DotOp] | type[WgmmaOp]) -> DType | None:
    """The type of 16 bits that a tile was rounded to, wherever it comes from, if dots of a kind alone read it.

    It is followed through loops: two numbers in a word take half the registers while it waits for the next iteration.
    """
    dtypes: set[DType | None] = set()
    seen: set[SSAValue] = set()
    left = [value]
    while left:
        current = left.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            if isinstance(use.operation, product) and use.index == 0:
                continue
            carrier = _carried_by(use)
            if carrier is None:
                return None
            left += carrier
        made = _made_of(current)
        if made is None:
            dtypes.add(narrowed_to(current.op) if isinstance(current, OpResult) else None)
        else:
            left += made
    return dtypes.pop() if len(dtypes) == 1 else None


def _carried_by(use: Use) -> list[SSAValue] | None:
    """What a loop makes of a tile that it is given, or that an iteration of it yields."""
    match use.operation:
        case tile.YieldOp() as op if isinstance(loop := op.parent_op(), tile.ForOp):
            place = use.index
        case tile.ForOp() as loop if use.index >= len(loop.indices):
            place = use.index - len(loop.indices)
        case _:
            return None
    return [loop.block.args[place + 1], loop.results[place]]


def _made_of(value: SSAValue) -> list[SSAValue] | None:
    """What a loop carries in a value: the tile it begins with, and what turns yield."""
    if isinstance(value, BlockArgument) and isinstance(loop := value.block.parent_op(), tile.ForOp) and value.index:
        place = value.index - 1
    elif isinstance(value, OpResult) and isinstance(loop := value.op, tile.ForOp):
        place = value.index
    else:
        return None
    last = loop.block.last_op
    assert last is not None
    return [loop.initial[place], last.operands[place]]
