"""Rows of memory that TMA brings as one piece: which loads are such, and what of a piece each block has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.backends.nvidia.ir.alignment import WIDEST, access_of, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.row_streams import PieceType
from weft.ir.expr import Size, substitute
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Row:
    """A load as one piece of memory."""

    load: tile.LoadOp
    kept: bool
    piece: PieceType
    end: int | None = None
    """Of rows that begin anywhere: the elements of the tensor."""


def is_piece(op: tile.LoadOp) -> bool:
    """Whether a load reads one piece of memory, whole, that TMA can move with what lies beside it."""
    shape, size = tile.tile_type(op.out).sizes, pointer_dtype(op).bytes
    pitch = 1
    for side, stride, extent in zip(shape[::-1], op.strides.data[::-1], op.extents.data[::-1], strict=True):
        if extent != side or (side > 1 and stride != pitch):
            return False
        pitch *= side
    return pitch * size >= WIDEST and (_is_aligned(op) or end_of_tensor(op) is not None)


def _is_aligned(op: tile.LoadOp) -> bool:
    """Whether a piece begins at multiples of 16 bytes, as TMA wants it."""
    return divisor_of(op.offset.data[0]) * pointer_dtype(op).bytes % WIDEST == 0


def end_of_tensor(op: tile.LoadOp) -> int | None:
    """Of a row for each program, where the last one ends; None if that is not known, or they are not moved shifted."""
    offset, shape, kernel = op.offset.data[0], tile.tile_type(op.out).sizes, op.parent_op()
    if isinstance(offset, int) or not access_of(op, shape).shifted or prod(shape) != shape[-1]:
        return None
    if not isinstance(kernel, tile.KernelOp) or any(a.kind != "symbol" or c < 0 for m, c in offset.terms for a in m):
        return None
    last: dict[str, Size] = {}
    for number, index in enumerate(op.indices):
        program = index.owner
        if not isinstance(program, tile.ProgramOp):
            return None
        last[f"d{number}"] = kernel.grid.data[program.axis.value.data] - 1
    end = substitute(offset, last)
    return end + prod(shape) if isinstance(end, int) else None


def is_fixed(op: tile.LoadOp) -> bool:
    return isinstance(op.offset.data[0], int)


def row_of(op: tile.LoadOp) -> Row | None:
    """A load of an annotated kernel as a piece of which each block has its part."""
    if not is_piece(op):
        return None
    layout, shape = layout_of(op.out), tile.tile_type(op.out).sizes
    strides = strides_of(shape)
    part = prod(shape)
    for mode in layout.blocks:
        if mode.axis is None:
            continue
        if prod(shape[: mode.axis]) != 1 or len([m for m in layout.blocks if m.axis is not None]) != 1:
            return None
        part = mode.step * strides[mode.axis]
    size = pointer_dtype(op).bytes
    whole = -(-prod(shape) * size // WIDEST) * WIDEST // size
    end = None if _is_aligned(op) else end_of_tensor(op)
    if (part if part < prod(shape) else whole) * size % WIDEST or (
        end is not None and layout.vector.size * size < WIDEST
    ):
        return None
    piece = PieceType.of(prod(shape), part, room_of(layout, strides), pointer_dtype(op), 0 if end is None else WIDEST)
    return Row(op, is_fixed(op), piece, end)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def room_of(layout: Layout, strides: Sequence[int]) -> int:
    """The elements from the first to the last that a block's threads read."""
    modes = (*layout.registers, *layout.lanes, *layout.warps)
    return 1 + sum((mode.size - 1) * mode.step * strides[mode.axis] for mode in modes if mode.axis is not None)
