"""Views of positions are positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import collective_ops
from weft.tile import dialect as tile


@dataclass(frozen=True)
class FoldViews(KernelPass):
    """Views of positions are positions: 0, 1, 2, … in other shapes need not be moved there.

    %i = tile.position 0 + i                       %v = tile.position 8 * i + j
    %v = tile.view %i strides [8, 1]       →
    """

    name: ClassVar[str] = "fold_views"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in list(kernel.walk()):
            if not isinstance(op, collective_ops.ViewOp) or not isinstance(op.value.owner, tile.PositionOp):
                continue
            source = op.value.owner
            if len(source.strides.data) != 1:
                continue
            (stride,), (offset,) = source.strides.data, source.offset.data
            sizes = tile.tile_type(op.out).sizes
            folded = tile.PositionOp.create(
                operands=list(source.indices),
                attributes={
                    "offset": tile.Sizes((offset + stride * op.offset.value.data,)),
                    "strides": tile.Sizes(tuple(stride * step for step in op.steps)),
                    "extents": tile.Sizes(sizes),
                },
                result_types=[op.out.type],
            )
            block = op.parent_block()
            assert block is not None
            block.insert_op_before(folded, op)
            op.out.replace_all_uses_with(folded.out)
            op.detach()
            op.erase()
