"""Hopper's tensor cores (`wgmma`): their ops, operand types, and the layout of accumulators and registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
    var_operand_def,
    var_result_def,
)

from weft.backends.nvidia.ir.layouts import Layout, Mode
from weft.backends.nvidia.ir.rings import SlotType
from weft.backends.nvidia.matmul_unit import WGMMA
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile

ROWS, DEPTH_BYTES = WGMMA.rows, WGMMA.depth_bytes


OPERAND_NAMES = {"bf16": "bf16", "f16": "f16", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "i8": "s8"}


@irdl_op_definition
class WgmmaOp(WeftOp):
    """`a @ b` plus the accumulator, by the tensor cores: b from a slot, a from one or, narrowed, from registers.

    It is begun here; only another one may use the result before `nvidia.wgmma_wait` has it.
    """

    name = "nvidia.wgmma"
    a = operand_def(SlotType | tile.TileType)
    b = operand_def(SlotType)
    accumulator = opt_operand_def(tile.TileType)
    out = result_def(tile.TileType)


@irdl_op_definition
class WgmmaWaitOp(WeftOp):
    """Wait for the dots that were begun, but for the last `pending` of them; gives those that it is given."""

    name = "nvidia.wgmma_wait"
    values = var_operand_def(tile.TileType)
    pending = attr_def(IntegerAttr)
    outs = var_result_def(tile.TileType)

    @classmethod
    def make(cls, values: Sequence[SSAValue], pending: int) -> Self:
        types = [value.type for value in values]
        return cls.create(operands=list(values), attributes={"pending": IntegerAttr(pending, i64)}, result_types=types)


OPS: list[type[IRDLOperation]] = [WgmmaOp, WgmmaWaitOp]


def accumulator_layout(shape: Sequence[int], consumers: int) -> Layout:
    """Where the tensor cores leave a dot: 64 rows to a warp group at a time, 16 of them to each of its warps."""
    rows, columns = shape
    each = rows // (ROWS * consumers)
    registers = [Mode(2, 1), Mode(2, 0, 8), Mode(columns // 8, 1, 8)]
    registers += [Mode(each, 0, ROWS)] if each > 1 else []
    warps = [Mode(4, 0, 16), *([Mode(consumers, 0, ROWS * each)] if consumers > 1 else [])]
    return Layout((rows, columns), tuple(m for m in registers if m.size > 1), (Mode(4, 1, 2), Mode(8, 0)), tuple(warps))


def words_layout(layout: Layout) -> Layout:
    """Where the words of two neighbours each are of a dot that the tensor cores left in a layout."""
    (rows, columns), (_, *registers), (_, below) = layout.shape, layout.registers, layout.lanes
    halved = tuple(replace(mode, step=mode.step // 2) if mode.axis == 1 else mode for mode in registers)
    return Layout((rows, columns // 2), halved, (Mode(4, 1), below), layout.warps)
