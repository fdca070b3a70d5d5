"""Weights that a loop captures, packed before its first turn: `passes/dot/pack_loop_weights.py` says which.

The panels of `lower/packing.py` are filled by copies, the last one after zeros where columns do not fill it:

    panels[p, k, n] = w[k, p * NR + n]     →     copy w as [N / NR, K, NR], columns NR apart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.ir.types import Tensor, contiguous_strides
from weft.lower.lowered import anchor_of
from weft.lower.packing import PackedLayout, Packing
from weft.lower.steps import Buffer, Place
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.passes.grouping.build_groups import PACKED_BEFORE

if TYPE_CHECKING:
    from weft.lower.plan import Planner


@dataclass
class PackedBefore:
    """What is packed before a loop: by the planner of the function around it, whose steps come first."""

    around: Planner
    captured: frozenset[int]
    """The buffers that all turns read and none writes."""
    packed: dict[tuple[int, Packing], Place] = field(default_factory=dict[tuple[int, Packing], Place])

    def place_of(self, buffer: int, packing: Packing) -> Place:
        """Where weights lie packed; before the outermost loop that captures them."""
        outer = self.around.before
        if outer is not None and buffer in outer.captured:
            return outer.place_of(buffer, packing)
        key = (buffer, packing)
        if key not in self.packed:
            self.packed[key] = _pack(self.around, buffer, packing)
        return self.packed[key]


def wants_packing(group: GroupOp, inputs: Sequence[Place], before: PackedBefore | None) -> list[bool]:
    """Which operands of a group may be packed before the loop that it is in."""
    dot = anchor_of(group)
    if before is None or dot is None or PACKED_BEFORE not in dot.attributes:
        return [False for _ in inputs]
    return [place.buffer in before.captured for place in inputs]


def _pack(planner: Planner, buffer: int, packing: Packing) -> Place:
    panels = packing.panels
    tensor = Tensor(panels.dtype, panels.shape)
    number = len(planner.buffers)
    planner.buffers.append(Buffer("temporary", tensor, contiguous(tensor)))
    steps = contiguous_strides(panels.shape)[1:]
    *batch, along_k, along_n = packing.strides
    whole, rest = divmod(panels.N, panels.NR)
    size = steps[0] * panels.shape[1]
    over = contiguous_strides(tuple(packing.batch))

    def part(shape: tuple[int, ...], first: int) -> tuple[Place, Place]:
        """Panels from `first` on: where they are read, and where they are written."""
        held = Tensor(panels.dtype, (*packing.batch, *shape))
        start = packing.offset + first * panels.NR * along_n
        read = StridedLayout((*batch, panels.NR * along_n, along_k, along_n), start)
        written = StridedLayout((*(size * step for step in over), *steps), first * steps[0])
        return Place(buffer, held, read), Place(number, held, written)

    if whole:
        planner.copy(*part((whole, panels.K, panels.NR), 0))
    if rest:
        planner.clear(part((1, panels.K, panels.NR), whole)[1])
        planner.copy(*part((1, panels.K, rest), whole))
    return Place(number, tensor, PackedLayout.of(panels))
