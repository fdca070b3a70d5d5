"""Where tiles of weights lie that the planes of a half share: in the slices at the edge, or in those before them.

A load takes as many rows in a cycle as a plane has streams for weights, each from a slice of its own. The slices at the
edge have nothing but weights. Those before them are read for constants too, while results are computed, so a tile there
is loaded at other times: where a model's weights need them, tiles that are loaded then are put there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft.spatial.machine import StreamingMachine


@dataclass(frozen=True)
class TilePlace:
    """Row r of a tile is in slice `r % width` of these, counted in its half, `r // width` words from its address."""

    slices: np.ndarray
    addresses: np.ndarray
    rows: int
    beside_constants: bool


@dataclass
class WeightPlaces:
    """The tiles of a half, and what is left of its slices."""

    machine: StreamingMachine
    first_constants: int
    scarce: bool
    """Whether the slices at the edge may be too few for all weights."""
    places: dict[tuple[int, bool], TilePlace] = field(default_factory=dict[tuple[int, bool], TilePlace])
    """By the tile, and whether it lies beside constants."""

    def __post_init__(self) -> None:
        width = self.machine.matrix.load_streams
        self.edge = self.machine.memory.slices_per_half - width
        self.inner = max(self.first_constants, self.edge - width)
        self.ends = np.zeros(width, np.int64)
        """Words that are taken of each slice at the edge, from the first address up."""

    @property
    def end(self) -> int:
        return int(self.ends.max())

    def find(self, tile: int, rows: int, clear: bool, inner: tuple[int, int], most: int) -> TilePlace | None:
        """A tile's place, a new one where it has none; None where there is no room.

        It is beside constants only where these are not read when it is loaded (`clear`), or there is no other room.
        `inner` are the free addresses there, of which the last are taken, and `most` is the end of those at the edge.
        """
        known = [each for beside in (False, True) if (each := self.places.get((tile, beside))) is not None]
        fitting = [each for each in known if clear or not each.beside_constants]
        if fitting:
            return fitting[0]
        ways = [True, False] if (clear and self.scarce) or self._is_edge_kept(rows, inner, most) else [False, True]
        for beside in ways:
            made = self._beside(rows, inner, most) if beside else self._at_edge(rows, most)
            if made is not None:
                self.places[tile, beside] = made
                return made
        return known[0] if known else None

    def _is_edge_kept(self, rows: int, inner: tuple[int, int], most: int) -> bool:
        """Whether what is left at the edge is kept for tiles beside constants, which have rows there too."""
        width, count = self.machine.matrix.load_streams, self.edge - self.inner
        left = width * (most - self._words(rows)) - int(self.ends.sum())
        return left * count < (width - count) * count * (inner[1] - inner[0])

    def _words(self, rows: int) -> int:
        return -(-rows // self.machine.matrix.load_streams)

    def _at_edge(self, rows: int, most: int) -> TilePlace | None:
        if self.end + self._words(rows) > most:
            return None
        addresses = self.ends.copy()
        self.ends += self._words(rows)
        return TilePlace(self.edge + np.arange(len(addresses)), addresses, rows, False)

    def _beside(self, rows: int, inner: tuple[int, int], most: int) -> TilePlace | None:
        """In all slices before the edge, and in as many at it as are missing, the emptiest."""
        width, words, count = self.machine.matrix.load_streams, self._words(rows), self.edge - self.inner
        start = inner[1] - words
        outer = np.sort(np.argsort(self.ends, kind="stable")[: width - count])
        if not count or start < inner[0] or np.any(self.ends[outer] + words > most):
            return None
        addresses = np.concatenate([np.full(count, start), self.ends[outer]])
        self.ends[outer] += words
        return TilePlace(np.concatenate([self.inner + np.arange(count), self.edge + outer]), addresses, rows, True)
