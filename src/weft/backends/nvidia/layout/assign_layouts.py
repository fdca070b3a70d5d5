"""Give every tile of a kernel a layout: the pass. The walk is in `assignment.py`, each op's rule in `rules/`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.backends.nvidia.ir.dialect import ARGUMENTS, BLOCKS, WARPS, set_integer, set_layouts
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Refused
from weft.backends.nvidia.ir.layouts import scalar_layout
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.layout.anchors import anchors_of
from weft.backends.nvidia.layout.assignment import LAYOUT_RULES, Assignment
from weft.backends.nvidia.layout.rules import control_flow, dot, elements, memory, reduce
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile

FAMILIES = (memory, elements, reduce, dot, control_flow)
"""The modules with the layout rules of ops, which register them as they are imported."""


@dataclass(frozen=True)
class AssignLayouts(KernelPass):
    """Give every tile of a kernel a layout.

    %x = tile.load …  : 4x1024               %x = tile.load … {nvidia.layouts = [4x1024: registers 8@1 4@1*256, …]}
    %m = tile.reduce max %x axis 1           %m = tile.reduce max %x axis 1 {nvidia.layouts = [4x1: …]}
    %d = tile.map sub(%x, %m)           →    %d = tile.map sub(%x, %m) {nvidia.layouts = [4x1024: …]}
    tile.store %t[…], %d     (transposed)    %c = nvidia.convert %d {nvidia.layouts = [4x1024: registers 4@0, …]}
                                             tile.store %t[…], %c

    Memory decides: each shape of a kernel has an *anchor*, the layout in which the accesses that move most bytes are
    coalesced. Tiles of smaller shapes that are broadcast against it take slices of it. What is computed follows its
    operands. Values that cost nothing (constants, positions and what is computed of these alone) are made again in each
    layout that someone wants; others are converted where they meet.
    """

    name: ClassVar[str] = "assign_layouts"
    decides: ClassVar[bool] = True

    clusters: bool = False
    """Whether blocks may be clusters, where the target has such."""
    converts: bool = True
    """Whether an access may ask for a layout of its own."""

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        return assign_layouts(kernel, clusters=self.clusters and target.has_clusters, converts=self.converts)


def assign_layouts(
    kernel: tile.KernelOp, *, clusters: bool = False, converts: bool = True, warps: int = 0, blocks: int = 0
) -> Refused | None:
    """Annotate a kernel in place, with so many warps and blocks where they are given."""
    refused = next((why for op in kernel.walk() if op is not kernel and (why := LAYOUT_RULES.refuses(op))), None)
    if refused is not None:
        return Refused(refused)
    for name, count in ((WARPS, warps), (BLOCKS, blocks)):
        if count:
            set_integer(kernel, name, count)
    anchors = anchors_of(kernel, clusters)
    anchors = replace(anchors, converts=converts and anchors.blocks == 1)
    assignment = Assignment(anchors)
    scalars = [value for value in kernel.block.args if isinstance(value.type, tile.TileType)]
    set_layouts(kernel, [scalar_layout(anchors.warps)] * len(scalars), ARGUMENTS)
    assignment.home.update(dict.fromkeys(scalars, scalar_layout(anchors.warps)))
    assignment.block(kernel.block)
    for op in reversed(list(kernel.walk())):  # what was made again elsewhere
        if cost_of(op).made_again and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    set_integer(kernel, WARPS, anchors.warps)
    if anchors.blocks > 1:
        set_integer(kernel, BLOCKS, anchors.blocks)
    return assignment.refused
