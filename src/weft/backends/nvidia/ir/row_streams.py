"""Ops of kernels that stream rows: one warp lets TMA bring the next programs' rows, the others compute.

    nvidia.stream stages 3 {                                   the producer, one thread
      nvidia.bulk_copy 0 %weight[0] kept
      tile.for %p … { nvidia.acquire ; nvidia.bulk_copy 0 %x[%p * 4096] ; nvidia.commit }
    } {                                                        the other warps
      tile.for %p … { nvidia.wait ; %x = nvidia.read 0 ; nvidia.release
                      %w = nvidia.read 0 kept ; … ; tile.store %y[…], … }
    }

A slot is the memory of a tile as it lies in global memory, in one piece; of a cluster, each block has its part. What no
program's number changes is brought once and *kept*. The ring's barriers are those of kernels around dots.

Of a row that begins anywhere the slot begins at a multiple of 16 bytes before it, and has 16 bytes more than the row;
the last ones of a tensor begin so early that nothing behind its `end` is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import NoTerminator

from weft.ir.operations import WeftOp
from weft.ir.types import DType, dtype_of, element_type
from weft.tile import dialect as tile

ALIGNMENT = 128
CROSSES = "nvidia.crosses"
"""On a reduction over the blocks of a cluster: they send each other what they have."""


@irdl_attr_definition
class PieceType(ParametrizedAttribute, TypeAttribute):
    """`!nvidia.piece<whole, part, room, bf16, 0>`: elements of a program, of a block, and those that threads read.

    Where rows begin anywhere, the last is the number of bytes that come with a row beside its own.
    """

    name = "nvidia.piece"
    whole: IntegerAttr
    part: IntegerAttr
    room: IntegerAttr
    element: Attribute
    more: IntegerAttr

    @classmethod
    def of(cls, whole: int, part: int, room: int, dtype: DType, more: int = 0) -> Self:
        first, second, third, last = (IntegerAttr(count, i64) for count in (whole, part, room, more))
        return cls(first, second, third, element_type(dtype), last)

    @property
    def dtype(self) -> DType:
        return dtype_of(self.element)

    @property
    def elements(self) -> int:
        return self.whole.value.data

    @property
    def share(self) -> int:
        return self.part.value.data

    @property
    def bytes(self) -> int:
        """Of a slot: threads may read more than a block has, and do not use it."""
        # Shifted, two chunks of 16 bytes are read where one is wanted.
        size = max(self.share, self.room.value.data) * self.dtype.bytes + 3 * self.beside
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def beside(self) -> int:
        """The bytes that come with a row that begins anywhere; 0 if it does not."""
        return self.more.value.data


@irdl_op_definition
class StreamOp(WeftOp):
    """A kernel that streams rows. `slots` are those of a stage, `kept` those that are filled once."""

    name = "nvidia.stream"
    stages = attr_def(IntegerAttr)
    slots = attr_def(ArrayAttr[PieceType])
    kept = attr_def(ArrayAttr[PieceType])
    crossing = attr_def(IntegerAttr)
    """The bytes that the blocks of a cluster exchange at once, at most."""
    early = opt_attr_def(UnitAttr)
    """What it brings is there before the kernel ahead of it has ended."""
    producer = region_def("single_block")
    consumer = region_def("single_block")
    traits = traits_def(NoTerminator())

    @classmethod
    def make(
        cls,
        stages: int,
        slots: Sequence[PieceType],
        kept: Sequence[PieceType],
        crossing: int,
        producer: Block,
        consumer: Block,
    ) -> Self:
        return cls.create(
            attributes={
                "stages": IntegerAttr(stages, i64),
                "slots": ArrayAttr(slots),
                "kept": ArrayAttr(kept),
                "crossing": IntegerAttr(crossing, i64),
            },
            regions=[Region(producer), Region(consumer)],
        )


@irdl_op_definition
class BulkCopyOp(WeftOp):
    """Let TMA bring a piece of memory to a slot; `offset` is where it begins, in elements.

    Of the rest of a row there may be fewer `elements` than a slot has.
    """

    name = "nvidia.bulk_copy"
    pointer = operand_def(tile.PointerType)
    indices = var_operand_def(IndexType)
    slot = attr_def(IntegerAttr)
    offset = attr_def(tile.Sizes)
    kept = opt_attr_def(UnitAttr)
    elements = opt_attr_def(IntegerAttr)
    end = opt_attr_def(IntegerAttr)
    """Of rows that begin anywhere: the elements of the tensor."""

    @classmethod
    def make(
        cls,
        pointer: SSAValue,
        indices: Sequence[SSAValue],
        slot: int,
        offset: tile.Sizes,
        kept: bool = False,
        elements: int | None = None,
        end: int | None = None,
    ) -> Self:
        attributes: dict[str, Attribute] = {"slot": IntegerAttr(slot, i64), "offset": offset}
        if end is not None:
            attributes["end"] = IntegerAttr(end, i64)
        if elements is not None:
            attributes["elements"] = IntegerAttr(elements, i64)
        return cls.create(operands=[pointer, *indices], attributes=attributes | ({"kept": UnitAttr()} if kept else {}))


@irdl_op_definition
class BulkCopyRowsOp(WeftOp):
    """Let TMA bring pieces of rows to a slot: `length` elements of each of `rows`, `apart` in global memory
    and `pitch` in the slot. Of rows there are `extent`: in place of others comes the last one again."""

    name = "nvidia.bulk_copy_rows"
    pointer = operand_def(tile.PointerType)
    indices = var_operand_def(IndexType)
    slot = attr_def(IntegerAttr)
    offset = attr_def(tile.Sizes)
    apart = attr_def(tile.Sizes)
    extent = attr_def(tile.Sizes)
    rows = attr_def(IntegerAttr)
    length = attr_def(IntegerAttr)
    pitch = attr_def(IntegerAttr)


@irdl_op_definition
class ReadOp(WeftOp):
    """A tile out of a slot, in the layout of the op; `strides` are the tile's in it, `extents` what there is of it.

    Of a row that begins anywhere it knows `offset` and `end`, as the copy does.
    """

    name = "nvidia.read"
    indices = var_operand_def(IndexType)
    slot = attr_def(IntegerAttr)
    strides = attr_def(tile.Sizes)
    kept = opt_attr_def(UnitAttr)
    extents = opt_attr_def(tile.Sizes)
    offset = opt_attr_def(tile.Sizes)
    end = opt_attr_def(IntegerAttr)
    out = result_def(tile.TileType)

    @classmethod
    def make(
        cls, slot: int, strides: tile.Sizes, out: Attribute, kept: bool = False, extents: tile.Sizes | None = None
    ) -> Self:
        attributes: dict[str, Attribute] = {"slot": IntegerAttr(slot, i64), "strides": strides}
        if extents is not None:
            attributes["extents"] = extents
        return cls.create(attributes=attributes | ({"kept": UnitAttr()} if kept else {}), result_types=[out])

    @classmethod
    def shifted(
        cls, slot: int, strides: tile.Sizes, out: Attribute, indices: Sequence[SSAValue], offset: tile.Sizes, end: int
    ) -> Self:
        attributes = {
            "slot": IntegerAttr(slot, i64),
            "strides": strides,
            "offset": offset,
            "end": IntegerAttr(end, i64),
        }
        return cls.create(operands=list(indices), attributes=attributes, result_types=[out])


@irdl_op_definition
class WaitKeptOp(WeftOp):
    """Wait until all that is kept is there."""

    name = "nvidia.wait_kept"


OPS: list[type[IRDLOperation]] = [StreamOp, BulkCopyOp, BulkCopyRowsOp, ReadOp, WaitKeptOp]


WEIGHTS = "nvidia.weights"
"""On a load of weights that TMA is to bring."""
