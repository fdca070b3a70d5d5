"""Which axes of its operand the axes of a view walk along."""

from __future__ import annotations

from dataclasses import dataclass

from weft.tile import collective_ops
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Axes:
    """For each axis of a view's operand, the axis of the view that walks it, or the index at which it stands still."""

    walked: tuple[int | None, ...]
    fixed: tuple[int, ...]


def axes_of(op: collective_ops.ViewOp) -> Axes | None:
    """How a view's axes are those of its operand; None if they are not."""
    sizes, shape = tile.tile_type(op.value).sizes, tile.tile_type(op.out).sizes
    rest, fixed = op.offset.value.data, list[int]()
    strides = collective_ops.row_major(sizes)
    for stride in strides:
        fixed.append(rest // stride)
        rest %= stride
    walked: list[int | None] = [None] * len(sizes)
    for axis, (size, step) in enumerate(zip(shape, op.steps, strict=True)):
        if size == 1 or step == 0:
            continue
        source = next((a for a, s in enumerate(strides) if s == step and sizes[a] == size and fixed[a] == 0), None)
        if source is None or walked[source] is not None:
            return None
        walked[source] = axis
    return Axes(tuple(walked), tuple(fixed))


def turns_matrix(op: collective_ops.ViewOp) -> bool:
    """Whether a view swaps the axes of a matrix."""
    axes, shape = axes_of(op), tile.tile_type(op.value).sizes
    same = len(shape) == 2 and shape[::-1] == tile.tile_type(op.out).sizes
    return same and axes is not None and axes.walked == (1, 0)
