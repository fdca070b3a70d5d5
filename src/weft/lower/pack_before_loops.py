"""Weights that a loop captures, packed before its first turn: `passes/dot/pack_loop_weights.py` says which.

The panels of `lower/packing.py` are filled by copies, after zeros where columns or sums do not fill them:

    panels[p, k, n] = w[k, p * NR + n]     →     copy w as [N / NR, K, NR], columns NR apart

Where neighbours along K lie together, as bf16 do for matrix tiles, w is copied as [N / NR, K / 2, NR, 2].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from weft.ir.types import Tensor, contiguous_strides, i32
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
    tensor = Tensor(packing.panels.dtype, packing.panels.shape)
    number = len(planner.buffers)
    planner.buffers.append(Buffer("temporary", tensor, contiguous(tensor)))
    filled = in_words(packing) or packing
    dtype, shape = filled.panels.dtype, filled.panels.shape
    copies = copies_into_panels(filled)
    if sum(prod(part) for part, _, _ in copies) < prod(shape):
        whole = Tensor(dtype, shape)
        planner.clear(Place(number, whole, contiguous(whole)))
    for part, read, written in copies:
        held = Tensor(dtype, part)
        planner.copy(Place(buffer, held, read), Place(number, held, written))
    return Place(number, tensor, PackedLayout.of(packing.panels))


def copies_into_panels(packing: Packing) -> list[tuple[tuple[int, ...], StridedLayout, StridedLayout]]:
    """What is copied, each in one go: its shape, how it lies in the operand, and in the panels."""
    panels = packing.panels
    *batch, along_k, along_n = packing.strides
    steps = contiguous_strides(panels.shape)
    over = tuple(steps[0] * step for step in contiguous_strides(tuple(packing.batch)))
    copies: list[tuple[tuple[int, ...], StridedLayout, StridedLayout]] = []
    for shape, first, from_k in _parts(packing):
        if panels.together == 1:
            inside, place = (along_k, along_n), first * steps[1]
        else:
            inside = (panels.together * along_k, along_n, along_k)
            place = first * steps[1] + from_k // panels.together * steps[2]
        start = packing.offset + first * panels.NR * along_n + from_k * along_k
        read = StridedLayout((*batch, panels.NR * along_n, *inside), start)
        copies.append(((*packing.batch, *shape), read, StridedLayout((*over, *steps[1:]), place)))
    return copies


def in_words(packing: Packing) -> Packing | None:
    """The same for words of 32 bits, where neighbours that lie together are such a word in what is packed, too.

    A matrix of words is turned in squares of registers; pairs of it would be moved one by one.
    """
    panels = packing.panels
    *others, along_k, along_n = packing.strides
    both = panels.together
    if both == 1 or both * panels.dtype.bytes != i32.bytes or along_k != 1 or panels.K % both:
        return None
    if any(number % both for number in (*others, along_n, packing.offset)):
        return None
    held = replace(panels, K=panels.K // both, dtype=i32, together=1)
    if held.shape[2] != panels.shape[2]:
        return None  # K is filled up
    strides = (*(stride // both for stride in others), 1, along_n // both)
    return replace(packing, panels=held, strides=strides, offset=packing.offset // both)


def _parts(packing: Packing) -> list[tuple[tuple[int, ...], int, int]]:
    """What is copied in one go: its shape in panels, its first panel, and its first place along K."""
    panels = packing.panels
    whole, rest = divmod(panels.N, panels.NR)
    columns = [(count, width, first) for count, width, first in ((whole, panels.NR, 0), (1, rest, whole))]
    columns = [each for each in columns if each[0] and each[1]]
    if panels.together == 1:
        return [((count, panels.K, width), first, 0) for count, width, first in columns]
    groups, odd = divmod(panels.K, panels.together)
    depths = [(groups, panels.together, 0), (1, odd, groups * panels.together)]
    return [
        ((count, depth, width, near), first, from_k)
        for count, width, first in columns
        for depth, near, from_k in depths
        if depth and near
    ]
