"""What the stream registers hold: for a stream, a position and a cycle, who drove the vector that is there.

A vector moves one register a cycle until another is driven over it. In the frame that moves along, a flight is a point:
all of it has the same (stream, cycle ∓ position). So the vector at a place is that of the nearest driver upstream among
those of the same point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.spatial.isa import EAST
from weft.spatial.machine import StreamingMachine


@dataclass(frozen=True)
class Registers:
    """All drivers of all streams, sorted along their flights."""

    keys: np.ndarray
    order: np.ndarray
    machine: StreamingMachine
    origin: int

    @staticmethod
    def of(machine: StreamingMachine, streams: np.ndarray, positions: np.ndarray, cycles: np.ndarray) -> Registers:
        """The registers that are driven on these streams, at these positions, in these cycles."""
        origin = -int(cycles.min(initial=0)) + 4 * machine.edge
        keys = _keys(machine, streams, positions, cycles, origin)
        order = np.argsort(keys, kind="stable")
        return Registers(keys[order], order, machine, origin)

    def holder(self, streams: np.ndarray, positions: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        """The driver of what each of these places holds; -1 where no one drove anything."""
        if not len(self.keys):
            return np.full(len(streams), -1)
        wanted = _keys(self.machine, streams, positions, cycles, self.origin)
        at = np.searchsorted(self.keys, wanted, side="right") - 1
        span = 2 * self.machine.edge + 1
        found = (at >= 0) & (self.keys[np.maximum(at, 0)] // span == wanted // span)
        return np.where(found, self.order[np.maximum(at, 0)], -1)

    def doubles(self) -> np.ndarray:
        """Pairs of drivers of one register in one cycle."""
        same = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        return np.stack([self.order[same], self.order[same + 1]], axis=1)


def _keys(
    machine: StreamingMachine, streams: np.ndarray, positions: np.ndarray, cycles: np.ndarray, origin: int
) -> np.ndarray:
    east = streams // machine.streams.per_direction == EAST
    points = cycles.astype(np.int64) + origin - np.where(east, positions, -positions)
    along = np.where(east, positions, -positions) + machine.edge
    return (streams.astype(np.int64) * (1 << 40) + points) * (2 * machine.edge + 1) + along
