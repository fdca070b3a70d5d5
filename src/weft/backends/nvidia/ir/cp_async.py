"""Ops of loops whose threads copy operands to shared memory ahead, by cp.async."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
)

from weft.backends.nvidia.ir.rings import SlotType
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class CpAsyncOp(WeftOp):
    """Begin to copy a tile from computed places to a stage of a slot, if there are `left` turns; zeros where the mask
    is false."""

    name = "nvidia.cp_async"
    pointer = operand_def(tile.PointerType)
    offsets = operand_def(tile.TileType)
    mask = opt_operand_def(tile.TileType)
    stage = operand_def(IndexType)
    left = operand_def(IndexType)
    slot = attr_def(SlotType)
    start = attr_def(IntegerAttr)
    """Where in shared memory the first stage of the slot begins."""
    irdl_options = (AttrSizedOperandSegments(),)


@irdl_op_definition
class CpAsyncCommitOp(WeftOp):
    """The copies that were begun since the last such op are a group."""

    name = "nvidia.cp_async_commit"


@irdl_op_definition
class CpAsyncWaitOp(WeftOp):
    """All threads wait until all groups but the last `pending` ones are there."""

    name = "nvidia.cp_async_wait"
    pending = attr_def(IntegerAttr)


@irdl_op_definition
class StagedOp(WeftOp):
    """A stage of a slot, as an operand of dots."""

    name = "nvidia.staged"
    stage = operand_def(IndexType)
    start = attr_def(IntegerAttr)
    out = result_def(SlotType)


OPS: list[type[IRDLOperation]] = [CpAsyncOp, CpAsyncCommitOp, CpAsyncWaitOp, StagedOp]
