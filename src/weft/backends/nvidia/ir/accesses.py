"""How loads and stores of a layout are made: ragged ones, rows of booleans, shared memory."""

from __future__ import annotations

from xdsl.ir import Operation

from weft.backends.nvidia.ir.alignment import access_of, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import layouts_of
from weft.backends.nvidia.ir.layouts import Layout, Mode
from weft.ir.types import boolean
from weft.tile import dialect as tile

QUAD, CHUNK, NEIGHBOURS = 4, 16, 2
"""Lanes that share a row, bytes that one reads at a time, and neighbours in one register after the other."""


BLOCK = QUAD * CHUNK


def is_of_rows(op: tile.LoadOp, layout: Layout) -> bool:
    """Whether a load is of such booleans, whole and aligned."""
    if pointer_dtype(op) != boolean or tile.tile_type(op.out).dtype != boolean or layout.rank != 2 or layout.blocks:
        return False
    held = layout.registers[:1] == (Mode(NEIGHBOURS, 1),) and layout.lanes == (Mode(QUAD, 1, NEIGHBOURS), Mode(8, 0))
    across = all(mode.axis == 0 for mode in layout.warps) and layout.shape[1] in (BLOCK, 2 * BLOCK)
    others = all(mode.axis == 0 or mode.step == 8 for mode in layout.registers[1:])
    whole = op.extents.data == layout.shape and op.strides.data[1] == 1
    steps = (op.offset.data[0], op.strides.data[0])
    return held and across and others and whole and all(divisor_of(s, op.indices) % CHUNK == 0 for s in steps)


def may_be_shared(op: Operation) -> bool:
    """Whether an op with layouts reads or writes memory that a block shares as it does any other."""
    if isinstance(op, tile.LoadOp | tile.StoreOp):
        (layout,) = layouts_of(op)
        return not ragged_width(op, layout) and not (isinstance(op, tile.LoadOp) and is_of_rows(op, layout))
    return isinstance(op, tile.GatherOp | tile.NumberOp) or (
        isinstance(op, tile.ScatterOp) and op.unordered is not None
    )


def ragged_width(op: tile.LoadOp | tile.StoreOp, layout: Layout) -> int:
    """How many neighbours are moved at once although some may not exist; 0 if they are not."""
    access = access_of(op, layout.shape)
    fits = access.axis == layout.vector.axis and layout.vector.size % access.vector == 0
    return access.vector if access.ragged and fits else 0
