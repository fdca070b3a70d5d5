"""The tiles of attention on a GPU where threads multiply and not tensor cores: types that those would round.

A thread holds its part of the scores and of what is summed up, beside what it reads of both operands of a product: of
the tensor cores' tiles that was twice what it has registers for, and up to 7.6 KB of a thread's values were spilled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.lower.schedule.schedule import Blocks

_Sides = Mapping[int, tuple[int, int]]
_FORWARD: _Sides = {64: (64, 64), 128: (64, 64), 192: (32, 64), 256: (32, 32)}
"""Queries and keys of a block by the width of heads up to it."""
_GRADIENTS: Mapping[str, _Sides] = {
    "queries": {64: (64, 64), 128: (64, 32), 256: (32, 32)},
    "keys": {64: (64, 64), 128: (32, 64), 256: (32, 32)},
    "values": {256: (32, 32)},
}
"""The same of the gradients of queries, of keys (those up to 128 with values) and of values."""


def vector_attention_blocks(chosen: Blocks) -> Blocks:
    """The tiles of attention in place of those that tensor cores would have."""
    return _smaller(chosen, _FORWARD)


def vector_gradient_blocks(of: str, chosen: Blocks) -> Blocks:
    """The same of attention's gradients `of` queries, keys or values."""
    return _smaller(chosen, _GRADIENTS[of])


def _smaller(chosen: Blocks, by_width: _Sides) -> Blocks:
    rows, columns, *widths = chosen.sides
    width = next((each for each in by_width if max(widths) <= each), max(by_width))
    most_rows, most_columns = by_width[width]
    return replace(chosen, sides=(min(rows, most_rows), min(columns, most_columns), *widths))
