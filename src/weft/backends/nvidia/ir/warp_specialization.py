"""Ops of warp-specialized kernels: one warp lets TMA fill rings of slots, warp groups multiply from them.

    nvidia.warp_specialize consumers 2, rings [4 stages of two slots] {  the producer
      tile.for %t … { tile.for %k … {
        nvidia.acquire 0 ; nvidia.tma_load 0.0 [%k, %m] ; nvidia.tma_load 0.1 [%k, %n] ; nvidia.commit 0 } }
    } {                                                        the consumers
      tile.for %t … { %c = tile.for %k … (%acc) {
        nvidia.wait 0 ; %a = nvidia.ring_slot 0.0 ; %b = nvidia.ring_slot 0.1
        %r = nvidia.wgmma %a, %b, %acc ; %s = nvidia.wgmma_wait %r ; nvidia.release 0
        tile.yield %s } … tile.store %y[…], %c }
    }

Rings and their stages: `ir/rings.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    opt_region_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import NoTerminator

from weft.backends.nvidia.ir.rings import RingType
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class WarpSpecializeOp(WeftOp):
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
class BlockNumberOp(WeftOp):
    """The number of this block, or how many there are: `kind` is `number` or `count`; or `cluster`, `clusters`, and
    the `rank` of a block in its cluster; or the number of the `warp`, where each has programs of its own."""

    name = "nvidia.block"
    kind = attr_def(StringAttr)
    out = result_def(IndexType)

    @classmethod
    def make(cls, kind: str) -> Self:
        return cls.create(attributes={"kind": StringAttr(kind)}, result_types=[IndexType()])


@irdl_op_definition
class AffineApplyOp(WeftOp):
    """An index expression over its operands."""

    name = "nvidia.affine_apply"
    indices = var_operand_def(IndexType)
    value = attr_def(tile.Sizes)
    out = result_def(IndexType)

    @classmethod
    def make(cls, value: tile.Sizes, indices: Sequence[SSAValue]) -> Self:
        return cls.create(operands=list(indices), attributes={"value": value}, result_types=[IndexType()])


@irdl_op_definition
class PingPongBarrierOp(WeftOp):
    """Consumers begin dots in turn: `await` until it is this one's, or `pass` it to the next one.

    While the tensor cores multiply for one, the others compute what comes between dots.
    """

    name = "nvidia.ping_pong_barrier"
    kind = attr_def(StringAttr)

    @classmethod
    def make(cls, kind: str) -> Self:
        return cls.create(attributes={"kind": StringAttr(kind)})


OPS: list[type[IRDLOperation]] = [WarpSpecializeOp, BlockNumberOp, AffineApplyOp, PingPongBarrierOp]
