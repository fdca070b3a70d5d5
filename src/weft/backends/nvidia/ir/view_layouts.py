"""Layouts of views and of ops that need an order along an axis.

Where a view only renames places (axes swapped, put in, split or joined), its elements stay in the registers they are
in: a mode of the operand's layout is a step through its elements counted row by row, and so is one of the view's.

    16x8: lanes 8@1 4@0      transposed: 8x16: lanes 8@0 4@1      joined: 128: lanes 8@0 4@0*8
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode, blocked
from weft.tile import collective_ops
from weft.tile import dialect as tile


def demanded(op: collective_ops.ViewOp, layout: Layout) -> Layout | None:
    """The layout of the operand in which every thread has what a view in `layout` holds; None if there is none."""
    source, shape = tile.tile_type(op.value).sizes, tile.tile_type(op.out).sizes
    strides = collective_ops.row_major(source)
    if op.offset.value.data or any(step < 0 for step in op.steps):
        return None
    walks = [0 if size == 1 else step for size, step in zip(shape, op.steps, strict=True)]
    found = _translated(layout, walks, source, strides)
    # An axis that the view does not walk has one element.
    if found is None or any(found.covered(axis) < size for axis, size in enumerate(source)):
        return None
    return found


def renamed(op: collective_ops.ViewOp, layout: Layout) -> Layout | None:
    """The layout of a view whose operand is in `layout`, if its elements need not move."""
    source, shape = tile.tile_type(op.value).sizes, tile.tile_type(op.out).sizes
    if prod(source) != prod(shape) or op.offset.value.data:
        return None
    if any(step <= 0 and size > 1 for size, step in zip(shape, op.steps, strict=True)):
        return None
    found = _translated(layout, list(collective_ops.row_major(source)), shape, op.steps)
    return found if found is not None and demanded(op, found) == layout.merged() else None


def kept_registers(op: collective_ops.ViewOp, layout: Layout) -> list[int]:
    """For each register of a view in `layout`, which one of its operand, as `demanded`, holds the element."""
    shape = tile.tile_type(op.out).sizes
    numbers, pitch = [0], 1
    for mode in layout.registers:
        assert mode.axis is not None
        step = pitch if op.steps[mode.axis] and shape[mode.axis] > 1 else 0
        numbers = [number + digit * step for digit in range(mode.size) for number in numbers]
        pitch *= mode.size if step else 1
    return numbers


def _translated(layout: Layout, strides: Sequence[int], shape: Sequence[int], steps: Sequence[int]) -> Layout | None:
    """The modes of a layout, whose axes have `strides`, as modes of another shape whose axes take `steps`."""
    lists: list[tuple[Mode, ...]] = []
    for number, modes in enumerate((layout.registers, layout.lanes, layout.warps)):
        result: list[Mode] = []
        for mode in modes:
            if mode.axis is None or strides[mode.axis] == 0:
                if number:
                    result.append(Mode(mode.size, None))
                continue
            parts = _parts(mode, layout, strides, shape, steps)
            if parts is None:
                return None
            result += parts
        lists.append(tuple(result))
    found = Layout(tuple(shape), *lists).merged()
    if any(_is_split(layout, a, strides, shape, steps) for a in range(layout.rank) if strides[a]) and any(
        found.covered(axis) > size for axis, size in enumerate(shape)
    ):
        return None  # a carry from one axis to the next
    return found


def _same_axis(
    layout: Layout, axis: int, strides: Sequence[int], shape: Sequence[int], steps: Sequence[int]
) -> int | None:
    """The axis of the other shape that is the same as one of the layout's."""
    pairs = enumerate(zip(shape, steps, strict=True))
    return next((a for a, (size, s) in pairs if s == strides[axis] and size == layout.shape[axis] and size > 1), None)


def _is_split(layout: Layout, axis: int, strides: Sequence[int], shape: Sequence[int], steps: Sequence[int]) -> bool:
    return layout.shape[axis] > 1 and _same_axis(layout, axis, strides, shape, steps) is None


def _parts(
    mode: Mode, layout: Layout, strides: Sequence[int], shape: Sequence[int], steps: Sequence[int]
) -> list[Mode] | None:
    assert mode.axis is not None
    same = _same_axis(layout, mode.axis, strides, shape, steps)
    if same is not None:
        return [Mode(mode.size, same, mode.step)]
    if mode.size & (mode.size - 1) or layout.covered(mode.axis) > layout.shape[mode.axis]:
        return None
    parts: list[Mode] = []
    for bit in range(mode.size.bit_length() - 1):
        distance = (mode.step << bit) * strides[mode.axis]
        for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
            if size > 1 and step > 0 and distance % step == 0 and step <= distance < step * size:
                parts.append(Mode(2, axis, distance // step))
                break
        else:
            return None
    return parts


def in_order(shape: Sequence[int], axis: int, warps: int) -> Layout:
    """A layout with the elements along an axis in order: those of a thread, then of lanes, then of warps."""
    others = [a for a in range(len(shape) - 1, -1, -1) if a != axis]
    along = max(1, warps // _power(prod(shape[a] for a in others)))
    registers = _power(-(-shape[axis] // (WARP * along)))
    return blocked(shape, warps, [axis, *others], registers, [*others, axis])


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
