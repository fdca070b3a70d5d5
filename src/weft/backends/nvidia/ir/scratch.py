"""Scratch in a block's shared memory, for what would else be written to global memory.

    %t = nvidia.scratch {nvidia.shared = 128}
    tile.store %t[…], %v ; nvidia.barrier ; … tile.load %t[…]

Small kernels that were fused into one block pass on through it what nobody else reads, in a tenth of the time.
"""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, result_def

from weft.backends.nvidia.ir.dialect import SHARED
from weft.ir.operations import WeftOp
from weft.tile import dialect as tile


@irdl_op_definition
class ScratchOp(WeftOp):
    """A pointer to such memory; `nvidia.shared` says where it begins."""

    name = "nvidia.scratch"
    out = result_def(tile.PointerType)

    @classmethod
    def make(cls, type_: Attribute, start: int) -> Self:
        return cls.create(attributes={SHARED: IntegerAttr(start, i64)}, result_types=[type_])


def space_of(pointer: SSAValue) -> str:
    """Where the memory of a pointer is."""
    return "shared" if isinstance(pointer.owner, ScratchOp) else "global"
