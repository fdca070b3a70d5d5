"""What goes over wires between chips: vectors one after another, straight or handed on by a chip between."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.spatial.mapping.layers import Placed


@dataclass(frozen=True)
class SentVectors:
    """Vectors of a tensor that are sent one after another, and where they lie on every chip."""

    tensor: Placed
    residues: np.ndarray
    addresses: np.ndarray
    tags: np.ndarray
    bytes: np.ndarray
    """Of vectors of 32 bits, which byte each is."""
    origin: int

    def some(self, chosen: np.ndarray) -> SentVectors:
        columns = {name: getattr(self, name)[chosen] for name in ("residues", "addresses", "tags", "bytes")}
        return replace(self, **columns)


Wire = tuple[int, int]
"""A chip that sends, and the one that receives."""


@dataclass(frozen=True)
class Shipment:
    """Vectors that go over a wire, so many periods after the round begins."""

    vectors: SentVectors
    after: int = 0


def relayed(vectors: int, relays: int, after: int) -> tuple[int, int]:
    """Of so many vectors how many go straight, and how many chips hand on the rest, each `after` so many periods.

    All arrive together, at the earliest; with no gain none is handed on.
    """
    best = (vectors, 0)
    for count in range(1, relays + 1):
        straight = -(-(vectors + count * after) // (count + 1))
        if straight < best[0]:
            best = (straight, count)
    return best
