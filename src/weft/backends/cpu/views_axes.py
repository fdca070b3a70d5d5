"""Which axes of its operand the axes of a view walk along."""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.cpu.position import Position
from weft.backends.llvm.builder import i64
from weft.tile import dialect as tile
from weft.tile import written


@dataclass(frozen=True)
class Axes:
    """For each axis of a view's operand, the axis of the view that walks it, or the index at which it stands still."""

    walked: tuple[int | None, ...]
    fixed: tuple[int, ...]

    def position(self, here: Position) -> Position:
        """Where in the operand a position of the view is."""
        places = zip(self.walked, self.fixed, strict=True)
        index = tuple(i64(at) if axis is None else here.index[axis] for axis, at in places)
        inner = next((a for a, axis in enumerate(self.walked) if axis == here.inner), None)
        if inner is None:  # it does not move along the lanes
            return here.elsewhere(index, max(len(index) - 1, 0), 1)
        return here.elsewhere(index, inner, here.lanes)


def axes_of(op: written.ViewOp) -> Axes | None:
    """How a view's axes are those of its operand; None if they are not."""
    sizes, shape = tile.tile_type(op.value).sizes, tile.tile_type(op.out).sizes
    rest, fixed = op.offset.value.data, list[int]()
    strides = written.row_major(sizes)
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
