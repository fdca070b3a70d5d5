"""Stretches of an innermost axis along which masks are known: where tensors are joined, padded or cut.

    select(position < 32, x[i], y[i - 32]) for i in 0..64    →    x[i] for i in 0..32, y[i - 32] for i in 32..64

A mask that is made of positions along the axis and of numbers is evaluated here, for all of the axis. Where few masks
change at few places, there is a loop for each stretch between these, with nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.memory_order import lazy_closure
from weft.ir.attributes import from_attribute
from weft.ir.types import boolean
from weft.tile import dialect as tile

_MOST = 8
_LONGEST = 1 << 14

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}


@dataclass(frozen=True)
class Stretch:
    """Places from `start` to before `stop`, and the masks that are true, or false, for all of them."""

    start: int
    stop: int
    known: dict[SSAValue, bool]


def stretches(values: Sequence[SSAValue], axis: int, extent: int) -> list[Stretch]:
    """The stretches of an axis along which what the values choose by is known; none if there is nothing to gain."""
    if extent > _LONGEST:
        return []
    reached = {v: None for value in values for v in lazy_closure(value)}
    found: dict[SSAValue, np.ndarray | None] = {}
    lines: dict[SSAValue, np.ndarray] = {}
    for mask in _masks(reached):
        for part in _known_parts(mask, axis, extent, found):
            lines[part] = found[part]  # type: ignore[assignment]
    cuts = sorted({int(cut) + 1 for line in lines.values() for cut in np.flatnonzero(np.diff(line))})
    if not lines or len(cuts) >= _MOST:
        return []
    bounds = [0, *cuts, extent]
    return [
        Stretch(start, stop, {mask: bool(line[start]) for mask, line in lines.items()})
        for start, stop in pairwise(bounds)
    ]


def _masks(values: dict[SSAValue, None]) -> list[SSAValue]:
    """What reads are masked by, and what is chosen by."""
    masks: dict[SSAValue, None] = {}
    for value in values:
        match value.op if isinstance(value, OpResult) else None:
            case tile.GatherOp(mask=mask) if mask is not None:
                masks[mask] = None
            case tile.MapOp() as op if op.function.data == "select":
                masks[op.args[0]] = None
            case _:
                pass
    return [mask for mask in masks if tile.tile_type(mask).dtype == boolean]


def _known_parts(mask: SSAValue, axis: int, extent: int, found: dict[SSAValue, np.ndarray | None]) -> list[SSAValue]:
    """The mask, if it is known along the axis, else what is known of the masks that have to hold for it to hold."""
    if _line(mask, axis, extent, found) is not None:
        return [mask]
    return [part for each in parts_of(mask) for part in _known_parts(each, axis, extent, found)]


def parts_of(mask: SSAValue) -> Sequence[SSAValue]:
    """The two masks that both have to hold for one to hold, if it is made of such."""
    op = mask.op if isinstance(mask, OpResult) else None
    return op.args if isinstance(op, tile.MapOp) and op.function.data == "and" else ()


def _line(value: SSAValue, axis: int, extent: int, found: dict[SSAValue, np.ndarray | None]) -> np.ndarray | None:
    """The elements of a tile along an axis, if they are the same for all places of the other axes, and known."""
    if value not in found:
        made = _evaluated(value, axis, extent, found)
        found[value] = None if made is None else np.broadcast_to(made, (extent,))
    return found[value]


def _evaluated(value: SSAValue, axis: int, extent: int, found: dict[SSAValue, np.ndarray | None]) -> Any:
    match value.op if isinstance(value, OpResult) else None:
        case tile.ConstantOp() as op:
            number = from_attribute(op.value)
            return np.asarray(number) if isinstance(number, int) else None
        case tile.PositionOp() as op:
            offset, strides = op.offset.data[0], op.strides.data
            sizes = tile.tile_type(value).sizes
            still = all(stride == 0 or sizes[a] == 1 for a, stride in enumerate(strides) if a != axis)
            step = strides[axis] if sizes[axis] > 1 else 0
            if not (still and isinstance(offset, int) and isinstance(step, int)):
                return None
            return offset + step * np.arange(extent)
        case tile.MapOp() as op if op.function.data in _FUNCTIONS:
            args = [_line(arg, axis, extent, found) for arg in op.args]
            return None if any(arg is None for arg in args) else _FUNCTIONS[op.function.data](*args)
        case _:
            return None
