"""Ops of the tile dialect for kernels that people write: any control flow, shapes that change, computed pointers.

Here a tile has all its elements; edges are masks. A scalar is a tile without axes. What these kernels read and write
goes through `tile.gather` and `tile.scatter`, whose pointer is an argument or made from a number by `tile.pointer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, i64
from xdsl.irdl import (
    AttrSizedOperandSegments,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
)

from weft.ir.operations import WeftOp
from weft.tile.dialect import PointerType, TileType


def numbers(values: Sequence[int]) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr(IntegerAttr(value, i64) for value in values)


@irdl_op_definition
class IndexOp(WeftOp):
    """An integer scalar as an index: the bound of a loop."""

    name = "tile.index"
    value = operand_def(TileType)
    out = result_def(IndexType)


@irdl_op_definition
class PointerOp(WeftOp):
    """The address that an integer scalar holds."""

    name = "tile.pointer"
    value = operand_def(TileType)
    out = result_def(PointerType)


@irdl_op_definition
class AddressOp(WeftOp):
    """A pointer as a number, an i64 scalar."""

    name = "tile.address"
    pointer = operand_def(PointerType)
    out = result_def(TileType)


@irdl_op_definition
class AtomicOp(WeftOp):
    """Read, combine and write as one step, where the mask holds; gives what was there.

    `kind` is add, max, min, and, or, xor, xchg or cas: the last writes the value where `expected` is found.
    """

    name = "tile.atomic"
    pointer = operand_def(PointerType)
    offsets = operand_def(TileType)
    value = operand_def(TileType)
    mask = opt_operand_def(TileType)
    expected = opt_operand_def(TileType)
    kind = attr_def(StringAttr)
    out = result_def(TileType)
    irdl_options = (AttrSizedOperandSegments(),)
