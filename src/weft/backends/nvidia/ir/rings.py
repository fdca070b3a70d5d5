"""Rings of stages in shared memory: TMA fills their slots, consumers read them, and barriers say whose turn it is.

A stage of a ring has a slot for each load that goes with the others. Its `full` barrier completes when all bytes have
arrived, its `empty` barrier when all consumers have released it. Both sides keep the stage and its phase, which go on
from loop to loop. Operands that dots need at different times have rings of their own, and so has what is brought
once for all iterations of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    opt_attr_def,
    result_def,
    var_operand_def,
)

from weft.ir.operations import WeftOp
from weft.ir.types import DType, dtype_of, element_type
from weft.tile import dialect as tile

LINE = 128
"""The bytes of a line of a slot: what the swizzle mixes, and the width of a box."""
BARRIER_BYTES = 16
"""Of the two barriers of a stage."""


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


@irdl_attr_definition
class RingType(ParametrizedAttribute, TypeAttribute):
    """A ring: `!nvidia.ring<4, [!nvidia.slot<…>, …]>` has 4 stages of such slots."""

    name = "nvidia.ring"
    stages: IntegerAttr
    slots: ArrayAttr[SlotType]

    @classmethod
    def of(cls, stages: int, slots: Sequence[SlotType]) -> Self:
        return cls(IntegerAttr(stages, i64), ArrayAttr(slots))

    @property
    def count(self) -> int:
        return self.stages.value.data

    @property
    def stage_bytes(self) -> int:
        return sum(slot.bytes for slot in self.slots)

    @property
    def bytes(self) -> int:
        """Of all slots; two barriers of 8 bytes a stage come on top."""
        return self.count * self.stage_bytes


class _RingOp(WeftOp):
    """An op about a ring, by its number."""

    ring = attr_def(IntegerAttr)

    @classmethod
    def of(cls, ring: int = 0) -> Self:
        return cls.create(attributes={"ring": IntegerAttr(ring, i64)})


@irdl_op_definition
class AcquireOp(_RingOp):
    """The producer waits until the next stage is empty, and says how many bytes will come."""

    name = "nvidia.acquire"
    bytes = opt_attr_def(IntegerAttr)
    """Where it is not all of a stage."""

    @classmethod
    def expecting(cls, size: int, ring: int = 0) -> Self:
        return cls.create(attributes={"ring": IntegerAttr(ring, i64), "bytes": IntegerAttr(size, i64)})


@irdl_op_definition
class TmaLoadOp(_RingOp):
    """Let TMA bring a box of a tensor map to a slot; the coordinates are those of its first element.

    What is read `once` by all programs together is the first to leave the L2 cache. In `pieces`, the lines of
    a slot are brought by as many boxes, whose coordinates stand one after the other.
    """

    name = "nvidia.tma_load"
    indices = var_operand_def(IndexType)
    slot = attr_def(IntegerAttr)
    map = attr_def(IntegerAttr)
    coordinates = attr_def(tile.Sizes)
    once = opt_attr_def(UnitAttr)
    """Nobody else reads it, so it is the first to leave the L2 cache."""
    part = opt_attr_def(SlotType)
    """What is brought, where it is not what the slot is for."""
    pieces = opt_attr_def(IntegerAttr)
    sharers = opt_attr_def(IntegerAttr)
    """The blocks of a cluster that each bring as many of the slot's lines, to all of them."""


@irdl_op_definition
class CommitOp(_RingOp):
    """The producer goes on to the next stage."""

    name = "nvidia.commit"


@irdl_op_definition
class WaitOp(_RingOp):
    """A consumer waits until all of the next stage is there."""

    name = "nvidia.wait"


@irdl_op_definition
class SlotOp(_RingOp):
    """A slot of the stage that was waited for."""

    name = "nvidia.ring_slot"
    slot = attr_def(IntegerAttr)
    out = result_def(SlotType)


@irdl_op_definition
class ReleaseOp(_RingOp):
    """A consumer is done with the stage, and goes on to the next."""

    name = "nvidia.release"


@irdl_op_definition
class RingToRegistersOp(_RingOp):
    """Bring a tile of which stage after stage holds a part, side by side, to registers, and release the stages."""

    name = "nvidia.ring_to_registers"
    slot = attr_def(IntegerAttr)
    part = attr_def(SlotType)
    out = result_def(tile.TileType)

    @property
    def parts(self) -> int:
        return tile.tile_type(self.out).sizes[1] // self.part.sizes[1]


@irdl_op_definition
class RewindOp(_RingOp):
    """A consumer goes back by some stages that it has not released, to read them again."""

    name = "nvidia.rewind"
    stages = attr_def(IntegerAttr)

    @classmethod
    def by(cls, stages: int, ring: int = 0) -> Self:
        return cls.create(attributes={"ring": IntegerAttr(ring, i64), "stages": IntegerAttr(stages, i64)})


OPS: list[type[IRDLOperation]] = [
    AcquireOp,
    TmaLoadOp,
    CommitOp,
    WaitOp,
    SlotOp,
    ReleaseOp,
    RingToRegistersOp,
    RewindOp,
]
