"""Epilogue operands: what a dot's result is combined with, element by element, through the ring of its operands.

    %c = tile.for %k … ; %r = tile.load %x[%m, %n] : 128x256 ; tile.store %y[…], %c + %r

Threads that read such a tile from memory wait for it when all dots are done: each holds a few elements here and
there. As TMA brings it in further stages behind the last operands, it is there by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.nvidia.code import TensorMap
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.index_slices import ops_behind
from weft.backends.nvidia.ir.rings import LINE, SlotType
from weft.backends.nvidia.ir.tma_boxes import tma_box_of
from weft.backends.nvidia.pipeline.operand_copies import Operands
from weft.ir.expr import Size
from weft.ir.types import bf16, f16
from weft.tile import dialect as tile

_MOST_LINES = 256
"""Of a box of TMA."""


@dataclass(frozen=True)
class EpilogueOperand:
    """A tile that comes in parts, each as a number of whole lines of columns in one slot of a stage."""

    load: tile.LoadOp
    map: TensorMap
    coordinates: tuple[Size, ...]
    ring: int
    slot: int
    part: SlotType

    @property
    def parts(self) -> int:
        return tile.tile_type(self.load.out).sizes[1] // self.part.sizes[1]

    def at(self, part: int) -> tuple[Size, ...]:
        """Where a part begins; columns are the first coordinate."""
        first, *others = self.coordinates
        return (first + part * self.part.sizes[1], *others)


def epilogue_operands_of(
    kernel: tile.KernelOp, operands: Operands, shape: Sequence[int]
) -> dict[tile.LoadOp, EpilogueOperand]:
    """The loads behind the loops of dots, of tiles of the results' shape, that TMA can bring."""
    ops = list(kernel.block.ops)
    loops = [n for n, op in enumerate(ops) if isinstance(op, tile.ForOp) and operands.any_in(op)]
    if not loops:
        return {}
    ring, slot, room = max(
        (
            (ring, number, slot.bytes)
            for ring, slots in enumerate(operands.rings)
            if not operands.held[ring]
            for number, slot in enumerate(slots)
        ),
        key=lambda each: each[2],
        default=(0, 0, 0),
    )
    found: dict[tile.LoadOp, EpilogueOperand] = {}
    for op in ops[loops[-1] + 1 :]:
        if isinstance(op, tile.LoadOp) and tile.tile_type(op.out).sizes == tuple(shape):
            epilogue_operand = _epilogue_operand(kernel, op, ring, slot, room)
            if epilogue_operand is not None:
                found[op] = epilogue_operand
    return found


def _epilogue_operand(
    kernel: tile.KernelOp, op: tile.LoadOp, ring: int, slot: int, room: int
) -> EpilogueOperand | None:
    rows, columns = tile.tile_type(op.out).sizes
    dtype = pointer_dtype(op)
    if dtype not in (bf16, f16) or rows > _MOST_LINES or ops_behind(op.indices) is None:
        return None
    part, wide = tma_box_of(kernel, op, (rows, columns)), LINE // dtype.bytes
    if part is None or part.inner != 1 or columns % wide:
        return None
    blocks = next((n for n in range(columns // wide, 0, -1) if columns // wide % n == 0 and n * rows * LINE <= room), 0)
    if not blocks:
        return None
    return EpilogueOperand(
        op, part.map((wide, rows)), part.coordinates, ring, slot, SlotType.of((rows, blocks * wide), 1, dtype)
    )
