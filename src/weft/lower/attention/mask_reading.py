"""The masks of an attention op as its kernel applies them: what is added to scores, and which keys count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import IndexType
from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, maximum, minimum, symbols_of
from weft.ir.types import boolean, tensor_of
from weft.lower.attention.key_ranges import (
    AtMost,
    Bound,
    Condition,
    Integer,
    Joined,
    KeyRange,
    MaskReader,
    Rows,
    bound_of,
    narrowed_range,
    whole_range,
)
from weft.lower.index_space.evaluate import Source
from weft.ops.base import GraphOp
from weft.ops.matmul.attention import SEEN, SEEN_ROWS
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.lower.attention.flash_attention import FlashLowering


Kept: TypeAlias = "tuple[tuple[SSAValue, Condition | None], ...]"
"""Masks that say which keys count, as conditions on places where they are such."""


@dataclass(frozen=True)
class Masks:
    """What is added to scores, the conditions under which keys count, and the keys that do so.

    A condition on places is there as such; others are computed. `certain` says that it is known where all hold, and
    `local` that nothing is added there. Beyond these keys the `upper` ones may fail, before them the `lower` ones; that
    the edges are `apart` says that no block of keys has both.
    """

    added: tuple[SSAValue, ...]
    kept: Kept
    upper: Kept
    lower: Kept
    range: KeyRange
    certain: bool
    local: bool = False
    apart: bool = False


def read_masks(lowering: FlashLowering) -> Masks:
    """Learn what the masks say of the program's rows; numbers in memory that bound them are read first."""
    reader = MaskReader(lowering.layouts, space=lowering.domain.bounds)
    added: list[SSAValue] = []
    kept: list[tuple[SSAValue, Condition | None]] = []
    for mask in lowering.op.masks:
        condition, numbers = _parts(mask)
        added += numbers
        for value in condition:
            kept.append((value, _condition(lowering, reader, value)))
    found = whole_range(lowering.rows, lowering.causal)
    certain = True
    for _, condition in kept:
        narrowed = None if condition is None else narrowed_range(found, condition, lowering.rows)
        certain &= narrowed is not None
        found = narrowed or found
    told = _told(lowering, reader)
    if told:
        lower, upper, start, stop, prefix = (*told, 0)[:SEEN]
        every = maximum(found.every[0], start), minimum(found.every[1], stop)
        found = KeyRange(maximum(found.lower, lower), minimum(found.upper, upper), every, prefix)
    edges = _edges(lowering, tuple(kept))
    upper, lower = edges or (tuple(kept), tuple(kept))
    told_of = bool(told)
    return Masks(tuple(added), tuple(kept), upper, lower, found, certain or told_of, told_of, apart=edges is not None)


def _edges(lowering: FlashLowering, kept: Kept) -> tuple[Kept, Kept] | None:
    """The conditions that may fail at the upper edge of a tile's keys, and those at the lower one.

    None unless it is known that no block of keys has both edges in it: all may fail at both then.
    """
    rows, width = lowering.rows, lowering.sides["j"]
    last = ceildiv(lowering.runs["i"].size, rows.count) * rows.count - 1 if "i" in lowering.runs else 0
    upper: list[tuple[SSAValue, Condition | None]] = []
    lower: list[tuple[SSAValue, Condition | None]] = []
    highest: list[Size] = [rows.first] if lowering.causal else []
    lowest: list[Size] = []
    room: list[Size] = []
    for mask, condition in kept:
        bound = _edge_of(condition, rows)
        if bound is None or bound.step == 0:
            return None
        ends = [bound.limit + bound.slope * (rows.first + place) for place in (0, rows.count - 1)]
        if bound.step > 0:
            upper.append((mask, condition))
            highest.append(ends[bound.slope < 0])
        else:
            lower.append((mask, condition))
            lowest.append(ends[bound.slope >= 0])
            room.append(rows.keys - width - bound.limit - max(bound.slope, 0) * last)
    gaps = [high - low - width + 1 for high in highest for low in lowest]
    if all(isinstance(size, int) and size >= 0 for size in (*gaps, *room)):
        return tuple(upper), tuple(lower)
    return None


def _edge_of(condition: Condition | None, rows: Rows) -> Bound | None:
    """The edge of what a condition lets count, if it is one; first keys may count beside a window."""
    if isinstance(condition, AtMost):
        return bound_of(condition.expr, rows)
    bounds = [_edge_of(each, rows) for each in condition.conditions] if condition is not None else []
    first = [bound for bound in bounds if bound is not None and bound.step > 0 and bound.slope == 0]
    windows = [bound for bound in bounds if bound is not None and bound.step < 0]
    is_either = isinstance(condition, Joined) and condition.kind == "or"
    return windows[0] if is_either and len(bounds) == 2 and first and windows else None


def _told(lowering: FlashLowering, reader: MaskReader) -> list[Size]:
    """What memory says of the keys that the program's rows see, if it does."""
    rows = lowering.rows
    if rows.count != SEEN_ROWS:
        return []
    tiles = (floordiv(rows.first, SEEN_ROWS), 0)
    found = [reader.at(Source(seen, tensor_of(seen.type)), tiles) for seen in lowering.op.seen]
    told = [each.expr for each in found if isinstance(each, Integer)]
    if len(told) < len(found):  # computed in this kernel, as of a single end of sequences: the mask tells all the same
        return []
    for name in sorted({name for expr in told for name in symbols_of(expr)} & reader.numbers.keys()):
        _read_number(lowering, name, *reader.numbers[name])
    return told


def _parts(mask: SSAValue) -> tuple[list[SSAValue], list[SSAValue]]:
    """The conditions of a mask, and what it adds."""
    if tensor_of(mask.type).dtype == boolean:
        return list(_conjuncts(mask)), []
    if isinstance(mask, OpResult) and mask.op.name == "graph.where":
        condition, yes, no = mask.op.operands
        if _number(no) == -math.inf:
            return list(_conjuncts(condition)), [] if _number(yes) == 0 else [yes]
    return [], [mask]


def _conjuncts(value: SSAValue) -> Iterator[SSAValue]:
    if isinstance(value, OpResult) and value.op.name in ("graph.bitwise_and", "graph.logical_and"):
        for operand in value.op.operands:
            yield from _conjuncts(operand)
    else:
        yield value


def _number(value: SSAValue) -> float | None:
    if isinstance(value, OpResult) and isinstance(value.op, GraphOp) and value.op.name == "graph.full":
        return value.op.params["value"]
    return None


def _condition(lowering: FlashLowering, reader: MaskReader, value: SSAValue) -> Condition | None:
    """A mask as a condition on rows and keys, if it is one."""
    tensor = tensor_of(value.type)
    found = reader.at(Source(value, tensor), lowering._mask_index(tensor))  # pyright: ignore[reportPrivateUsage]
    return _over_runs(lowering, reader, found) if isinstance(found, AtMost | Joined) else None


def _over_runs(lowering: FlashLowering, reader: MaskReader, condition: Condition) -> Condition | None:
    """A condition over what the kernel has: its runs and the numbers that it reads."""
    if isinstance(condition, Joined):
        parts = [_over_runs(lowering, reader, each) for each in condition.conditions]
        known = tuple(part for part in parts if part is not None)
        return replace(condition, conditions=known) if len(known) == len(parts) else None
    expr: Size = lowering.emit.resolve(condition.expr)
    bound = bound_of(expr, lowering.rows)
    if bound is None:
        return None
    for name in symbols_of(bound.limit) & reader.numbers.keys():
        if name not in lowering.emit.scalars:
            _read_number(lowering, name, *reader.numbers[name])
    return AtMost(expr) if symbols_of(bound.limit) <= lowering.emit.scalars.keys() else None


def _read_number(lowering: FlashLowering, name: str, value: SSAValue, address: Size) -> None:
    """Let the kernel read a number that is the same for all its rows and keys."""
    emit = lowering.emit
    place = emit.resolve(address)
    if symbols_of(place) <= emit.scalars.keys():
        (offset,), operands = emit.sizes((place,))
        op = tile.NumberOp.create(
            operands=[emit.pointers[value], *operands],
            attributes={"offset": offset},
            result_types=[IndexType()],
        )
        emit.scalars[name] = emit.add(op)
