"""Operands of wgmma that threads store to shared memory: what is computed, or narrowed, or read both ways.

nvidia.local_store %p → slot at 0        each thread writes the elements that it holds, rounded to 16 bits
nvidia.cp_async %q[%offsets] → slot      what memory has in 16 bits goes there by itself
nvidia.fence_async_shared                all of it is there, for all threads and for the tensor cores (the async proxy)
%a = nvidia.local_operand 0              the operand, as it was stored or transposed
"""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, operand_def, result_def

from weft.backends.nvidia.ir.rings import SlotType
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class LocalStoreOp(WeftOp):
    """Write a tile, rounded to the 16 bits of a slot, to shared memory; `start` is where the slot begins."""

    name = "nvidia.local_store"
    value = operand_def(tile.TileType)
    slot = attr_def(SlotType)
    start = attr_def(IntegerAttr)

    @classmethod
    def make(cls, value: SSAValue, slot: SlotType, start: int) -> Self:
        return cls.create(operands=[value], attributes={"slot": slot, "start": IntegerAttr(start, i64)})


@irdl_op_definition
class FenceAsyncSharedOp(WeftOp):
    """All threads wait until what they stored, or began to copy, is there for dots."""

    name = "nvidia.fence_async_shared"


@irdl_op_definition
class LocalOperandOp(WeftOp):
    """A tile in shared memory as an operand of dots."""

    name = "nvidia.local_operand"
    start = attr_def(IntegerAttr)
    out = result_def(SlotType)

    @classmethod
    def make(cls, slot: SlotType, start: int) -> Self:
        return cls.create(attributes={"start": IntegerAttr(start, i64)}, result_types=[slot])


OPS: list[type[IRDLOperation]] = [LocalStoreOp, FenceAsyncSharedOp, LocalOperandOp]
