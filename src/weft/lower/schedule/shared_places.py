"""Tiles of a processor's kernel that looks elements up at places which many of its lines have in common."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.expr import symbols_of
from weft.lower.index_space.domain import Run
from weft.lower.index_space.evaluate import Address
from weft.lower.machine import Machine

_LINES, _LEAST_LENGTH, _UNIT = 16, 128, 16
"""Lines for which places are computed once, the least elements of such a line, and what these are a multiple of."""


def shared_places(vector: Run, outer: Run, addresses: Sequence[Address], machine: Machine) -> tuple[int, int] | None:
    """Lines of a tile and their elements, where many short lines are better than the few that are as long as the run.

    So it is where places along the vector are computed, from data or from positions, that are the same for all of the
    outer run: the channels of an image that is sampled, for example.
    """
    along = [address for address in addresses if vector.name in symbols_of(address.expr)]
    same = [each for each in along if outer.name not in symbols_of(each.expr) and each.purpose != "store"]
    if not (same and any(address.looked_up for address in addresses) and isinstance(vector.size, int)):
        return None
    lines = min(_LINES, outer.size) if isinstance(outer.size, int) else _LINES
    length = max(_LEAST_LENGTH, machine.tile_elements // max(1, lines))
    if lines < 2 or vector.size <= length:
        return None
    parts = -(-vector.size // length)
    return lines, min(length, -(-vector.size // (parts * _UNIT)) * _UNIT)
