"""Ops of warp-specialised kernels: one warp lets the copy engine fill a ring of slots, warp groups multiply from them.

    nvidia.roles stages 4, consumers 2 {                       the producer
      tile.for %t … { tile.for %k … {
        nvidia.acquire ; nvidia.fill 0 [%k, %m] ; nvidia.fill 1 [%k, %n] ; nvidia.commit } }
    } {                                                        the consumers
      tile.for %t … { %c = tile.for %k … (%acc) {
        nvidia.wait ; %a = nvidia.slot 0 ; %b = nvidia.slot 1
        %r = nvidia.wgmma %a, %b, %acc ; nvidia.release ; tile.yield %r } … tile.store %y[…], %c }
    }

A stage of the ring has one slot for each load. Its `full` barrier completes when all bytes have arrived, its `empty`
barrier when all consumers have released it. Both sides keep the stage and its phase, which go on from loop to loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Block, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    region_def,
    result_def,
    var_operand_def,
)

from weft.ir.types import DType, dtype_of, element_type
from weft.tile import dialect as tile

LINE = 128
"""The bytes of a line of a slot: what the swizzle mixes, and the width of a box."""
MAP, COORDINATES = "nvidia.map", "nvidia.coordinates"
"""On a store that the copy engine makes: the tensor map, and where in it the tile begins."""
STAGE_ROWS, STAGE_COLUMNS = 16, 64
STAGE_BYTES = STAGE_ROWS * LINE
"""What a warp hands the copy engine to write: through one of two places of its own in shared memory."""


@irdl_attr_definition
class SlotType(ParametrizedAttribute, TypeAttribute):
    """A tile in a slot: `!nvidia.slot<[128, 64], 1, bf16>`; `inner` is the axis along which memory runs.

    It lies in blocks of 128 bytes along that axis, each of which has a line for every place along the other one.
    """

    name = "nvidia.slot"
    shape: ArrayAttr[IntegerAttr]
    inner: IntegerAttr
    element: Attribute

    @classmethod
    def of(cls, shape: Sequence[int], inner: int, dtype: DType) -> Self:
        return cls(ArrayAttr(IntegerAttr(n, i64) for n in shape), IntegerAttr(inner, i64), element_type(dtype))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size.value.data for size in self.shape)

    @property
    def axis(self) -> int:
        return self.inner.value.data

    @property
    def dtype(self) -> DType:
        return dtype_of(self.element)

    @property
    def bytes(self) -> int:
        return prod(self.sizes) * self.dtype.bytes

    @property
    def lines(self) -> int:
        """The lines of a block."""
        return self.sizes[1 - self.axis]

    @property
    def blocks(self) -> int:
        return self.sizes[self.axis] * self.dtype.bytes // LINE


@irdl_op_definition
class RolesOp(IRDLOperation):
    """A kernel of two roles. `slots` are the types of a stage's slots."""

    name = "nvidia.roles"
    stages = attr_def(IntegerAttr)
    consumers = attr_def(IntegerAttr)
    slots = attr_def(ArrayAttr[SlotType])
    producer = region_def("single_block")
    consumer = region_def("single_block")

    @classmethod
    def make(cls, stages: int, consumers: int, slots: Sequence[SlotType], producer: Block, consumer: Block) -> Self:
        return cls.create(
            attributes={
                "stages": IntegerAttr(stages, i64),
                "consumers": IntegerAttr(consumers, i64),
                "slots": ArrayAttr(slots),
            },
            regions=[Region(producer), Region(consumer)],
        )


@irdl_op_definition
class BlockNumberOp(IRDLOperation):
    """The number of this block, or how many there are: `kind` is `number` or `count`; or `cluster`, `clusters`."""

    name = "nvidia.block"
    kind = attr_def(StringAttr)
    out = result_def(IndexType)

    @classmethod
    def make(cls, kind: str) -> Self:
        return cls.create(attributes={"kind": StringAttr(kind)}, result_types=[IndexType()])


@irdl_op_definition
class IndexOp(IRDLOperation):
    """An index expression over its operands."""

    name = "nvidia.index"
    indices = var_operand_def(IndexType)
    value = attr_def(tile.Sizes)
    out = result_def(IndexType)

    @classmethod
    def make(cls, value: tile.Sizes, indices: Sequence[SSAValue]) -> Self:
        return cls.create(operands=list(indices), attributes={"value": value}, result_types=[IndexType()])


@irdl_op_definition
class AcquireOp(IRDLOperation):
    """The producer waits until the next stage is empty, and says how many bytes will come."""

    name = "nvidia.acquire"


@irdl_op_definition
class FillOp(IRDLOperation):
    """Let the copy engine bring a box of a tensor map to a slot; the coordinates are those of its first element."""

    name = "nvidia.fill"
    indices = var_operand_def(IndexType)
    slot = attr_def(IntegerAttr)
    map = attr_def(IntegerAttr)
    coordinates = attr_def(tile.Sizes)


@irdl_op_definition
class CommitOp(IRDLOperation):
    """The producer goes on to the next stage."""

    name = "nvidia.commit"


@irdl_op_definition
class WaitOp(IRDLOperation):
    """A consumer waits until all of the next stage is there."""

    name = "nvidia.wait"


@irdl_op_definition
class SlotOp(IRDLOperation):
    """A slot of the stage that was waited for."""

    name = "nvidia.take"
    slot = attr_def(IntegerAttr)
    out = result_def(SlotType)


@irdl_op_definition
class WgmmaOp(IRDLOperation):
    """`a @ b` plus the accumulator, by the tensor cores from slots; done when the op is."""

    name = "nvidia.wgmma"
    a = operand_def(SlotType)
    b = operand_def(SlotType)
    accumulator = opt_operand_def(tile.TileType)
    out = result_def(tile.TileType)


@irdl_op_definition
class ReleaseOp(IRDLOperation):
    """A consumer is done with the stage, and goes on to the next."""

    name = "nvidia.release"


OPS: list[type[IRDLOperation]] = [
    RolesOp,
    BlockNumberOp,
    IndexOp,
    AcquireOp,
    FillOp,
    CommitOp,
    WaitOp,
    SlotOp,
    WgmmaOp,
    ReleaseOp,
]
