"""How the rows of a narrow image share vectors: which row each slot of a vector holds.

An image of 64 channels fills a fifth of a vector. Packed, a vector holds the pixels of one column in several rows, a
slot of channels for each, and a line of vectors stands where a row stood:

    slot s of line u holds row  advance · u + spread · s + lead

    strips        slots 4, advance 4            0 1 2 3 │ 4 5 6 7 │ …          every row once
    overlapping   slots 4, advance 2, lead -1   -1 0 1 2 │ 1 2 3 4 │ …         a window of 3 rows lies in one vector
    bands         slots 4, spread 14            0 14 28 42 │ 1 15 29 43 │ …    neighbours are whole vectors

A row outside the image is padding, and so is the slot that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Packing:
    """Which rows the slots of a vector hold. `first` is the first line that is stored, `lines` how many there are."""

    slots: int
    advance: int
    spread: int
    lead: int
    first: int
    lines: int

    def row(self, line: int, slot: int) -> int:
        """The row of the image in a slot; lines count from the first that is stored."""
        return self.advance * (line + self.first) + self.spread * slot + self.lead


def plain(height: int) -> Packing:
    """A row a line."""
    return Packing(1, 1, 1, 0, 0, height)


def packings(height: int, most: int, border: int) -> Iterator[Packing]:
    """The ways to pack rows, at most so many in a vector; with a border of padding, some have its rows too."""
    yield plain(height)
    for slots in range(2, min(most, height) + 1):
        for advance in range(slots, 0, -1):
            yield Packing(slots, advance, 1, -((slots - advance) // 2), 0, -(-height // advance))
        for parts in (slots, 2 * slots):
            spread = -(-height // parts)
            below = height - spread * (slots - 1) if parts != slots else spread
            for top, bottom in dict.fromkeys(((0, 0), (border, 0), (border, border))):
                if below > 0:
                    yield Packing(slots, 1, spread, 0, -top, below + top + bottom)
