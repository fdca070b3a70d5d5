"""Ops of the tile dialect that need all elements of a tile: views, folds, scans, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, UnitAttr, i64
from xdsl.ir import Block, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    region_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from weft.ir.operations import WeftOp
from weft.tile.dialect import TileType, YieldOp, tile_type
from weft.tile.pointer_ops import numbers


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """How far apart neighbours are along each axis of a tile that lies row by row."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


@irdl_op_definition
class ViewOp(WeftOp):
    """Element i is element `offset + sum(strides * i)` of the operand, counted row by row.

    Reshapes, transposes, flips, slices and broadcasts (strides of 0) are views.
    """

    name = "tile.view"
    value = operand_def(TileType)
    offset = attr_def(IntegerAttr)
    strides = attr_def(ArrayAttr[IntegerAttr])
    out = result_def(TileType)

    @classmethod
    def make(cls, value: SSAValue, shape: Sequence[int], offset: int, strides: Sequence[int]) -> Self:
        return cls.create(
            operands=[value],
            result_types=[TileType.of(shape, tile_type(value).dtype)],
            attributes={"offset": IntegerAttr(offset, i64), "strides": numbers(strides)},
        )

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(stride.value.data for stride in self.strides)

    def verify_(self) -> None:
        source, sizes = tile_type(self.value), tile_type(self.out).sizes
        if len(self.steps) != len(sizes) or source.dtype != tile_type(self.out).dtype:
            raise VerifyException("tile.view: one stride an axis, and the operand's element type")
        reach = [stride * (size - 1) for stride, size in zip(self.steps, sizes, strict=True) if size]
        start, count = self.offset.value.data, 1
        for size in source.sizes:
            count *= size
        first, last = start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0)
        if len(reach) == len(sizes) and not 0 <= first <= last < count:
            raise VerifyException(f"tile.view: elements {first} to {last} of {source}")


@irdl_op_definition
class TakeOp(WeftOp):
    """The elements of a tile that stand at computed positions along an axis."""

    name = "tile.take"
    value = operand_def(TileType)
    indices = operand_def(TileType)
    axis = attr_def(IntegerAttr)
    out = result_def(TileType)


class _Combining(WeftOp):
    """Joins elements along an axis by a block that takes two tuples of scalars and yields one."""

    values = var_operand_def(TileType)
    axis = attr_def(IntegerAttr)
    outs = var_result_def(TileType)
    body = region_def("single_block")

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def yielded(self) -> YieldOp:
        last = self.block.last_op
        assert isinstance(last, YieldOp)
        return last


@irdl_op_definition
class FoldOp(_Combining):
    """All elements along an axis, joined into one; the axis stays with size 1."""

    name = "tile.fold"


@irdl_op_definition
class ScanOp(_Combining):
    """The elements up to each along an axis, joined; from the last on where it is reversed."""

    name = "tile.scan"
    reverse = opt_attr_def(UnitAttr)


@irdl_op_definition
class OrderOp(WeftOp):
    """Sort along the last axis; NaN is the greatest."""

    name = "tile.order"
    value = operand_def(TileType)
    descending = opt_attr_def(UnitAttr)
    out = result_def(TileType)


@irdl_op_definition
class HistogramOp(WeftOp):
    """How often each number from 0 on occurs in a tile of one axis, where the mask holds."""

    name = "tile.histogram"
    value = operand_def(TileType)
    mask = opt_operand_def(TileType)
    out = result_def(TileType)
