"""What the planes of a stack of products do: they load tiles one after another, and a vector passes in between."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft.spatial.isa import EAST, EMITS, NONE, WEST, Opcode, Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.scheduler.emit import Emitter
from weft.spatial.scheduler.stack_memory import StackMemory

SUMS = 0
"""The first of the streams that bring the sums of a half's planes to the middle, four for each."""


@dataclass
class StackPlane:
    """What a plane of a stack does: for each of its tiles, when a vector meets it, and what these are."""

    met: list[int] = field(default_factory=list[int])
    tiles: list[int] = field(default_factory=list[int])
    taken: list[int] = field(default_factory=list[int])
    """The tag of the vector."""
    read_at: list[int] = field(default_factory=list[int])
    """Its address."""
    made: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    details: list[int] = field(default_factory=list[int])
    origins: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class PlaneEmission:
    """Emits what planes do."""

    machine: StreamingMachine
    units: Units
    memory: StackMemory
    emitter: Emitter

    def weights(self, plane: int, done: StackPlane, interval: int) -> None:
        """Loads end just before a tile is installed, in the cycle in which a vector meets the one before it."""
        machine, load = self.machine, np.arange(self.machine.load_cycles)
        width = machine.matrix.load_streams
        met = np.array(done.met)
        installs = np.concatenate([[met[0] - interval], met[:-1]])
        cycles = installs[:, None] - machine.latency.load_weights - machine.load_cycles + 1 + load
        first = np.array([self.memory.tile(plane, tile) for tile in done.tiles])[:, None] + load
        tags = np.array(done.tiles)[:, None] * machine.matrix.rows + load * width
        origins = np.repeat(np.array(done.origins), machine.load_cycles)
        stream = self._weight_stream(plane)
        for number in range(width):
            slice_ = self.memory.weight_slice(plane) + number
            way = machine.edge - abs(self.units.position(slice_))
            self.emitter.emit(
                Opcode.READ,
                slice_,
                cycles - way - machine.latency.read,
                result=stream + number,
                address=first,
                tag=tags + number,
                origin=origins,
            )
        queue = self.units.plane(plane, 0)
        tile_tags = np.array(done.tiles) * machine.matrix.rows
        columns = {"want0": tags, "tag": np.repeat(tile_tags, machine.load_cycles), "origin": origins}
        self.emitter.emit(
            Opcode.LOAD_WEIGHTS, queue, cycles, source0=stream, address=np.tile(load, len(met)), **columns
        )
        self.emitter.emit(Opcode.INSTALL_WEIGHTS, queue, installs, tag=tile_tags, origin=np.array(done.origins))

    def vectors(self, plane: int, done: StackPlane) -> None:
        """A vector is read when it can meet its tile, and its sums leave with the last tile of a block."""
        machine, latency, met = self.machine, self.machine.latency, np.array(done.met)
        stream = self._weight_stream(plane) + machine.matrix.load_streams - 1
        tags, origins = np.array(done.taken), np.array(done.origins)
        weights = np.array(done.tiles) * machine.matrix.rows
        self.emitter.emit(
            Opcode.READ,
            self.units.memory(0, 0),
            met - self.way(plane) - latency.read,
            result=stream,
            address=np.array(done.read_at),
            tag=tags,
            origin=origins,
        )
        queue = self.units.plane(plane, 1)
        self.emitter.emit(Opcode.MULTIPLY, queue, met, source0=stream, want0=tags, tag=weights, origin=origins)
        details = np.array(done.details)
        self.emitter.emit(
            Opcode.ACCUMULATE,
            self.units.plane(plane, 2),
            met + latency.multiply,
            result=np.where(details & EMITS, self.sums(plane), NONE),
            address=np.array(done.rows),
            detail=details,
            want0=tags,
            want1=weights,
            tag=np.array(done.made),
            origin=origins,
        )

    def way(self, plane: int) -> int:
        """Registers from where vectors lie to a plane."""
        return self.machine.edge + (1 if self.units.half_of_plane(plane) else -1)

    def sums(self, plane: int) -> int:
        """The first of the streams that bring the sums of a plane to the middle."""
        own = plane % (self.machine.matrix.planes // 2)
        return self.stream(WEST if self.units.half_of_plane(plane) else EAST, SUMS + 4 * own)

    def _weight_stream(self, plane: int) -> int:
        """The first of the streams that bring the weights of a plane."""
        half, own = self.units.half_of_plane(plane), plane % (self.machine.matrix.planes // 2)
        return self.stream(EAST if half else WEST, own * self.machine.matrix.load_streams)

    def stream(self, direction: int, number: int) -> int:
        return direction * self.machine.streams.per_direction + number
