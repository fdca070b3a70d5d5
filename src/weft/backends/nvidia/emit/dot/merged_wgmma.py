"""Merged wgmma: dots of the same rows with neighbouring slots, as of a gated MLP, are one instruction.

An instruction reads the rows that it multiplies from shared memory, whichever the number of its columns: of 64 rows and
twice 128 columns it is 384 lines for two dots, and 320 for one with 256.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import OpResult, SSAValue

from weft.backends.llvm.values import V
from weft.backends.nvidia.ir.rings import SlotOp, SlotType
from weft.backends.nvidia.ir.wgmma import ROWS, WgmmaOp, WgmmaWaitOp

_MOST_COLUMNS = 256
"""Of an instruction."""


def joined(op: WgmmaOp) -> list[WgmmaOp]:
    """The dots that are begun together with one, itself among them, in the order of their slots."""
    group: list[WgmmaOp] = []
    for each in _until_finished(op):
        if not group or not _follows(each, group):
            if op in group:
                break
            group = []
        group.append(each)
    return group if op in group else [op]


def merged_slot(products: Sequence[WgmmaOp]) -> SlotType:
    """The right operands of dots as one."""
    slot = products[0].b.type
    assert isinstance(slot, SlotType)
    depth, columns = slot.sizes
    return SlotType.of((depth, columns * len(products)), slot.axis, slot.dtype)


def merged_sums(products: Sequence[Sequence[V]], rows: int) -> list[V]:
    """The registers of dots as those of one: 64 rows of each after the other."""
    each = len(products[0]) * ROWS // rows
    starts = range(0, len(products[0]), each)
    return [value for start in starts for product in products for value in product[start : start + each]]


def split_sums(values: Sequence[V], products: int, rows: int) -> list[list[V]]:
    """The opposite."""
    each = len(values) * ROWS // (rows * products)
    parts = [list(values[start : start + each]) for start in range(0, len(values), each)]
    return [[value for part in parts[number::products] for value in part] for number in range(products)]


def _until_finished(op: WgmmaOp) -> list[WgmmaOp]:
    """The dots between two waits, if the second one is for all that is under way."""
    block = op.parent
    assert block is not None
    found: list[WgmmaOp] = []
    for each in block.ops:
        if isinstance(each, WgmmaWaitOp):
            if op in found:
                return found if each.pending.value.data == 0 else [op]
            found = []
        elif isinstance(each, WgmmaOp):
            found.append(each)
    return [op]


def _follows(op: WgmmaOp, before: Sequence[WgmmaOp]) -> bool:
    """Whether a dot can be one with those before it: its slot lies behind theirs."""
    last, here = (_slot(each.b) for each in (before[-1], op))
    if here is None or last is None or op.a is not before[0].a or op.b.type != before[0].b.type:
        return False
    slot = op.b.type
    assert isinstance(slot, SlotType)
    behind = here.ring == last.ring and here.slot.value.data == last.slot.value.data + 1
    own = op.accumulator is None or op.accumulator not in [each.out for each in before]
    fits = slot.sizes[1] * (len(before) + 1) <= _MOST_COLUMNS and slot.blocks * slot.lines % 8 == 0
    # Along K, the second block of a dot would lie between the first ones of both.
    in_order = slot.axis == 1 or slot.blocks == 1
    return behind and own and fits and in_order and (op.accumulator is None) == (before[0].accumulator is None)


def _slot(value: SSAValue) -> SlotOp | None:
    return value.op if isinstance(value, OpResult) and isinstance(value.op, SlotOp) else None
