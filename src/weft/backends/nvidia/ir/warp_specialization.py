"""Ops of warp-specialized kernels: one warp lets TMA fill rings of slots, warp groups multiply from them.

    nvidia.warp_specialize consumers 2, rings [4 stages of two slots] {  the producer
      tile.for %t … { tile.for %k … {
        nvidia.acquire 0 ; nvidia.tma_load 0.0 [%k, %m] ; nvidia.tma_load 0.1 [%k, %n] ; nvidia.commit 0 } }
    } {                                                        the consumers
      tile.for %t … { %c = tile.for %k … (%acc) {
        nvidia.wait 0 ; %a = nvidia.take 0.0 ; %b = nvidia.take 0.1
        %r = nvidia.wgmma %a, %b, %acc ; %s = nvidia.wgmma_wait %r ; nvidia.release 0
        tile.yield %s } … tile.store %y[…], %c }
    }

A stage of a ring has a slot for each load that goes with the others. Its `full` barrier completes when all bytes have
arrived, its `empty` barrier when all consumers have released it. Both sides keep the stage and its phase, which go on
from loop to loop. Operands that dots need at different times have rings of their own, and so has what is brought
once for all iterations of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    opt_region_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import NoTerminator

from weft.ir.types import DType, dtype_of, element_type, i32
from weft.tile import dialect as tile

LINE = 128
"""The bytes of a line of a slot: what the swizzle mixes, and the width of a box."""
MAP, COORDINATES, LIMIT = "nvidia.map", "nvidia.coordinates", "nvidia.limit"
"""On a store that TMA makes: the tensor map, and where in it the tile begins. Where the tile ends in the
midst of the tensor, the row that it ends before."""
LINES, POINTER = "nvidia.lines", "nvidia.pointer"
"""On a store that warps make line by line: how many columns and rows the matrix has, the elements from one row to the
next and before the first, and what number of elements lines begin at multiples of; which argument its memory is."""
STAGE_ROWS, STAGE_COLUMNS = 16, 64
STAGE_BYTES = STAGE_ROWS * LINE
"""What a warp hands TMA to write: through one of two places of its own in shared memory."""


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


@irdl_op_definition
class WarpSpecializeOp(IRDLOperation):
    """A kernel of two roles, or of three: what is there before the kernel ahead has ended comes `early`."""

    name = "nvidia.warp_specialize"
    consumers = attr_def(IntegerAttr)
    rings = attr_def(ArrayAttr[RingType])
    producer = region_def("single_block")
    consumer = region_def("single_block")
    early = opt_region_def("single_block")
    cluster = attr_def(IntegerAttr)
    """Blocks that share operands: a stage is empty when the consumers of all of them have released it."""
    traits = traits_def(NoTerminator())

    @classmethod
    def make(
        cls,
        consumers: int,
        rings: Sequence[RingType],
        producer: Block,
        consumer: Block,
        early: Block | None = None,
        cluster: int = 1,
    ) -> Self:
        numbers = {"consumers": IntegerAttr(consumers, i64), "cluster": IntegerAttr(cluster, i64)}
        return cls.create(
            attributes={**numbers, "rings": ArrayAttr(rings)},
            regions=[Region(block) for block in (producer, consumer, early) if block is not None],
        )

    @property
    def producers(self) -> list[Block]:
        """What brings operands, what comes early last."""
        return [self.producer.block, *([] if self.early is None else [self.early.block])]


@irdl_op_definition
class BlockNumberOp(IRDLOperation):
    """The number of this block, or how many there are: `kind` is `number` or `count`; or `cluster`, `clusters`, and
    the `rank` of a block in its cluster; or the number of the `warp`, where each has programs of its own."""

    name = "nvidia.block"
    kind = attr_def(StringAttr)
    out = result_def(IndexType)

    @classmethod
    def make(cls, kind: str) -> Self:
        return cls.create(attributes={"kind": StringAttr(kind)}, result_types=[IndexType()])


@irdl_op_definition
class AffineApplyOp(IRDLOperation):
    """An index expression over its operands."""

    name = "nvidia.index"
    indices = var_operand_def(IndexType)
    value = attr_def(tile.Sizes)
    out = result_def(IndexType)

    @classmethod
    def make(cls, value: tile.Sizes, indices: Sequence[SSAValue]) -> Self:
        return cls.create(operands=list(indices), attributes={"value": value}, result_types=[IndexType()])


class _OfRing:
    """Ops that say nothing but which ring they are about."""

    @classmethod
    def of(cls, ring: int = 0) -> Self:
        made: Any = cls
        return made.create(attributes={"ring": IntegerAttr(ring, i64)})


@irdl_op_definition
class AcquireOp(_OfRing, IRDLOperation):
    """The producer waits until the next stage is empty, and says how many bytes will come."""

    name = "nvidia.acquire"
    ring = attr_def(IntegerAttr)
    bytes = opt_attr_def(IntegerAttr)
    """Where it is not all of a stage."""

    @classmethod
    def expecting(cls, size: int, ring: int = 0) -> Self:
        return cls.create(attributes={"ring": IntegerAttr(ring, i64), "bytes": IntegerAttr(size, i64)})


@irdl_op_definition
class TmaLoadOp(IRDLOperation):
    """Let TMA bring a box of a tensor map to a slot; the coordinates are those of its first element.

    What is read `once` by all programs together is the first to leave the second-level cache. In `pieces`, the lines of
    a slot are brought by as many boxes, whose coordinates stand one after the other.
    """

    name = "nvidia.tma_load"
    indices = var_operand_def(IndexType)
    ring = attr_def(IntegerAttr)
    slot = attr_def(IntegerAttr)
    map = attr_def(IntegerAttr)
    coordinates = attr_def(tile.Sizes)
    once = opt_attr_def(UnitAttr)
    """Nobody else reads it, so it is the first to leave the second-level cache."""
    part = opt_attr_def(SlotType)
    """What is brought, where it is not what the slot is for."""
    pieces = opt_attr_def(IntegerAttr)
    sharers = opt_attr_def(IntegerAttr)
    """The blocks of a cluster that each bring as many of the slot's lines, to all of them."""


@irdl_op_definition
class CommitOp(_OfRing, IRDLOperation):
    """The producer goes on to the next stage."""

    name = "nvidia.commit"
    ring = attr_def(IntegerAttr)


@irdl_op_definition
class WaitOp(_OfRing, IRDLOperation):
    """A consumer waits until all of the next stage is there."""

    name = "nvidia.wait"
    ring = attr_def(IntegerAttr)


@irdl_op_definition
class SlotOp(IRDLOperation):
    """A slot of the stage that was waited for."""

    name = "nvidia.take"
    ring = attr_def(IntegerAttr)
    slot = attr_def(IntegerAttr)
    out = result_def(SlotType)


@irdl_op_definition
class WgmmaOp(IRDLOperation):
    """`a @ b` plus the accumulator, by the tensor cores: b from a slot, a from one or, narrowed, from registers.

    It is begun here; only another one may use the result before `nvidia.wgmma_wait` has it.
    """

    name = "nvidia.wgmma"
    a = operand_def(SlotType | tile.TileType)
    b = operand_def(SlotType)
    accumulator = opt_operand_def(tile.TileType)
    out = result_def(tile.TileType)


@irdl_op_definition
class WgmmaWaitOp(IRDLOperation):
    """Wait for the dots that were begun, but for the last `pending` of them; gives those that it is given."""

    name = "nvidia.wgmma_wait"
    values = var_operand_def(tile.TileType)
    pending = attr_def(IntegerAttr)
    outs = var_result_def(tile.TileType)

    @classmethod
    def make(cls, values: Sequence[SSAValue], pending: int) -> Self:
        types = [value.type for value in values]
        return cls.create(operands=list(values), attributes={"pending": IntegerAttr(pending, i64)}, result_types=types)


@irdl_op_definition
class ReleaseOp(_OfRing, IRDLOperation):
    """A consumer is done with the stage, and goes on to the next."""

    name = "nvidia.release"
    ring = attr_def(IntegerAttr)


@irdl_op_definition
class RingToRegistersOp(IRDLOperation):
    """Bring a tile of which stage after stage holds a part, side by side, to registers, and release the stages."""

    name = "nvidia.ring_to_registers"
    ring = attr_def(IntegerAttr)
    slot = attr_def(IntegerAttr)
    part = attr_def(SlotType)
    out = result_def(tile.TileType)

    @property
    def parts(self) -> int:
        return tile.tile_type(self.out).sizes[1] // self.part.sizes[1]


@irdl_op_definition
class PingPongBarrierOp(IRDLOperation):
    """Consumers begin dots in turn: `await` until it is this one's, or `pass` it to the next one.

    While the tensor cores multiply for one, the others compute what comes between dots.
    """

    name = "nvidia.ping_pong_barrier"
    kind = attr_def(StringAttr)

    @classmethod
    def make(cls, kind: str) -> Self:
        return cls.create(attributes={"kind": StringAttr(kind)})


@irdl_op_definition
class TruncatePackOp(IRDLOperation):
    """A dot's tile as words of two neighbours of 16 bits each, to be written later."""

    name = "nvidia.truncate_pack"
    value = operand_def(tile.TileType)
    dtype = attr_def(StringAttr)
    out = result_def(tile.TileType)

    @classmethod
    def make(cls, value: SSAValue, dtype: DType) -> Self:
        attributes = {"dtype": StringAttr(dtype.name)}
        return cls.create(operands=[value], attributes=attributes, result_types=[packed_type(value)])


def is_staged(op: Operation) -> bool:
    """Whether a store goes through its warp's places in shared memory."""
    return MAP in op.attributes or LINES in op.attributes


def packed_type(value: SSAValue) -> tile.TileType:
    """The type of a tile's words."""
    rows, columns = tile.tile_type(value).sizes
    return tile.TileType.of((rows, columns // 2), i32)


@irdl_op_definition
class TmaStoreOp(IRDLOperation):
    """Write one of the pieces of a narrowed tile, 64 rows of a warp group and 64 columns, as its store would."""

    name = "nvidia.tma_store"
    words = operand_def(tile.TileType)
    indices = var_operand_def(IndexType)
    piece = attr_def(IntegerAttr)


@irdl_op_definition
class RewindOp(IRDLOperation):
    """A consumer goes back by some stages that it has not released, to read them again."""

    name = "nvidia.rewind"
    ring = attr_def(IntegerAttr)
    stages = attr_def(IntegerAttr)

    @classmethod
    def by(cls, stages: int, ring: int = 0) -> Self:
        return cls.create(attributes={"ring": IntegerAttr(ring, i64), "stages": IntegerAttr(stages, i64)})


OPS: list[type[IRDLOperation]] = [
    WarpSpecializeOp,
    BlockNumberOp,
    AffineApplyOp,
    AcquireOp,
    TmaLoadOp,
    CommitOp,
    WaitOp,
    SlotOp,
    WgmmaOp,
    WgmmaWaitOp,
    ReleaseOp,
    RingToRegistersOp,
    PingPongBarrierOp,
    TruncatePackOp,
    TmaStoreOp,
    RewindOp,
]


BARRIER_BYTES = 16
"""Of the two barriers of a stage."""
