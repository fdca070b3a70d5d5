"""The schedule of one chip as it grows: what is taken until when, what is in memory when, and what was emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from weft.spatial.isa import CHAINED, EAST, NONE, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Layer, Model
from weft.spatial.program import INSTRUCTION, Port, Program, port_of
from weft.spatial.scheduler.bank_halves import NO_HALVES, BankHalves
from weft.spatial.scheduler.emit import groups_of, texts_of
from weft.spatial.scheduler.gemv import GemvPipeline, is_gemv
from weft.spatial.scheduler.initial import image_of
from weft.spatial.scheduler.layer_reads import CrowdedError
from weft.spatial.scheduler.memory_map import CapacityError, MemoryMap
from weft.spatial.scheduler.optimum import Movable
from weft.spatial.scheduler.pipeline import LayerPipeline

CROSSING = (24, 30, 31)
"""Streams on which vectors may be read in one half for the edge of the other: to links, and to the planes."""
_PACES = (1, 2, 4)
"""Cycles from a row to the next, the fastest first."""


@dataclass
class Reservations:
    """Until when each resource is taken: queues, banks of memory, and streams in the frame that moves with them."""

    machine: StreamingMachine
    positions: np.ndarray
    ends: dict[int, int] = field(default_factory=dict[int, int])

    def earliest(self, spans: Mapping[int, tuple[int, int]]) -> int:
        """The first start at which no resource is taken twice; so what is read was written, in the same bank."""
        own = -min(first for first, _ in spans.values())
        return max((self.ends[key] - first for key, (first, _) in spans.items() if key in self.ends), default=own)

    def take(self, spans: Mapping[int, tuple[int, int]], start: int) -> None:
        for key, (_, last) in spans.items():
            self.ends[key] = max(self.ends.get(key, start + last + 1), start + last + 1)

    def spans(self, columns: Mapping[str, np.ndarray]) -> dict[int, tuple[int, int]]:
        """The first and the last use of each resource, in cycles of the layer."""
        machine, op = self.machine, columns["opcode"]
        queue, cycle = columns["queue"], columns["cycle"]
        keys, times = [queue * 2 + port_of(op)], [cycle]
        memory = op <= Opcode.WRITE
        bank = columns["address"][memory] // machine.memory.bank_words
        keys.append((1 << 20) + queue[memory] * machine.memory.banks + bank)
        # What is written can be read some cycles later, so the bank is taken until then.
        times.append(cycle[memory] + (op[memory] == Opcode.WRITE) * (machine.latency.write - 1))
        # A link is busy with a vector for some cycles.
        linked = np.isin(op, (Opcode.SEND, Opcode.RECEIVE))
        keys.append(queue[linked] * 2 + port_of(op)[linked])
        times.append(cycle[linked] + machine.link_period - 1)
        # The weights of a plane are in use from their install to the last row that meets them.
        installs, multiplies = op == Opcode.INSTALL_WEIGHTS, op == Opcode.MULTIPLY
        keys += [(3 << 20) + queue[installs] + 1, (3 << 20) + queue[multiplies]]
        times += [cycle[installs] + 1, cycle[multiplies]]
        latency = machine.latency
        late = np.array([latency.read, 0, 0, 0, 0, latency.accumulate, latency.alu, 0, latency.receive])
        driven = (columns["result"] != NONE) & (columns["result"] < CHAINED)
        stream, place = columns["result"][driven], self.positions[queue[driven]]
        east = stream // machine.streams.per_direction == EAST
        # A stream is two: what is on its way to the middle is gone when something else leaves it.
        outward = (place >= 0) == east
        width = np.where(np.isin(op[driven], (Opcode.READ, Opcode.RECEIVE)), 1, 4)
        points = cycle[driven] + late[op[driven]] - np.where(east, place, -place)
        for byte in range(4):
            kept = byte < width
            keys.append((2 << 20) + (stream[kept] + byte) * 2 + outward[kept])
            times.append(points[kept])
        # What comes from another chip goes on beyond the middle, and so does what is read for the other edge.
        crossing = (op[driven] == Opcode.READ) & ~outward & np.isin(stream % machine.streams.per_direction, CROSSING)
        through = (op[driven] == Opcode.RECEIVE) | crossing
        keys.append((2 << 20) + stream[through] * 2 + 1)
        times.append(points[through])
        every, at = np.concatenate(keys), np.concatenate(times)
        order = np.argsort(every, kind="stable")
        every, at = every[order], at[order]
        starts = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
        lows, highs = np.minimum.reduceat(at, starts), np.maximum.reduceat(at, starts)
        return {int(k): (int(a), int(b)) for k, a, b in zip(every[starts], lows, highs, strict=True)}


class ChipSchedule:
    """A chip that layers, and transfers to others, are put on one after another."""

    def __init__(
        self, machine: StreamingMachine, model: Model, halves: BankHalves = NO_HALVES, *, movable: bool = False
    ) -> None:
        self.machine, self.model = machine, model
        self.memory = MemoryMap(machine, model, halves)
        units = self.memory.units
        positions = np.array([units.position(queue) for queue in range(units.end)])
        self.reservations = Reservations(machine, positions)
        self.done: dict[int, int] = {}
        """The cycle from which each tensor is in memory."""
        self.movable: list[Movable] | None = [] if movable else None
        """What the search for better starts knows of the layers, where it is asked for."""
        self.not_before: int | None = None
        """The first cycle in which the next layers compute something, where they wait for another chip."""
        self.groups: list[np.ndarray] = []
        self.multiplied = self.computed = 0
        self.loads = 0.0

    def add_layer(self, layer: Layer, start: int | None = None, later: int = 0) -> int:
        """A layer, as early as what it uses allows and so much later, or from a given start; its start."""
        pipeline = self._pipeline(layer)
        columns = pipeline.emitter.columns()
        spans = self.reservations.spans(columns)
        if start is None:
            start = self.reservations.earliest(spans) + later
            if self.not_before is not None:
                computes = np.isin(columns["opcode"], (Opcode.MULTIPLY, Opcode.ALU))
                start = max(start, self.not_before - int(columns["cycle"][computes].min()))
        if self.movable is not None:
            self.movable.append(self._movable(columns, spans))
        self.add(columns, spans, start)
        self.written(layer.output.root.number, start + pipeline.written)
        self.multiplied += pipeline.multiplied
        self.computed += int((columns["opcode"] == Opcode.ALU).sum())
        self.loads += pipeline.loaded
        return start

    def _movable(self, columns: Mapping[str, np.ndarray], spans: Mapping[int, tuple[int, int]]) -> Movable:
        """What the start of a layer has to do with those of others."""
        written = columns["opcode"] == Opcode.WRITE
        bank = columns["address"][written] // self.machine.memory.bank_words
        banks = np.unique((1 << 20) + columns["queue"][written] * self.machine.memory.banks + bank)
        issued = columns["cycle"]
        done = issued + _delays(self.machine)[columns["opcode"]]
        return Movable(
            spans,
            frozenset(int(each) for each in banks),
            int(issued.min()),
            int(done.max()) + self.machine.lanes.tiles,
        )

    def _pipeline(self, layer: Layer) -> LayerPipeline:
        """A layer as fast as its windows can be read, or as its weights can be loaded."""
        if is_gemv(self.machine, self.memory, layer):
            kept = dict(self.memory.wide_at), dict(self.memory.wide_from)
            gemv = GemvPipeline(self.machine, self.memory, layer)
            try:
                gemv.run()
            except CapacityError:
                # What is too much for slices of all planes may fit those that planes of a half share.
                self.memory.wide_at, self.memory.wide_from = kept
            else:
                return gemv
        for pace in _PACES:
            pipeline = LayerPipeline(self.machine, self.memory, layer, pace)
            try:
                pipeline.run()
            except CrowdedError:
                if pace == _PACES[-1]:
                    raise
            else:
                return pipeline
        raise AssertionError("the last pace returns or raises")

    def add(self, columns: dict[str, np.ndarray], spans: Mapping[int, tuple[int, int]], start: int) -> None:
        """Issues whose cycles count from a start."""
        self.reservations.take(spans, start)
        columns["cycle"] = columns["cycle"] + start
        self.groups.append(groups_of(columns))

    def written(self, tensor: int, cycle: int) -> None:
        """A tensor, or a part of it, is in memory from this cycle on."""
        self.done[tensor] = max(self.done.get(tensor, cycle), cycle)

    def instructions(self) -> np.ndarray:
        return np.concatenate(self.groups) if self.groups else np.zeros(0, INSTRUCTION)

    def bounds(self) -> dict[str, int]:
        """Cycles that units are busy at the least."""
        machine, planes = self.machine, self.machine.matrix.planes
        return {
            "MXM": -(-self.multiplied // planes),
            "VXM": -(-self.computed // machine.alus),
            "weights": ceil(self.loads * machine.load_cycles / planes),
        }

    def program(self, first: int, inputs: list[Port], outputs: list[Port], bounds: Mapping[str, int]) -> Program:
        """The program, in which cycle 0 is the given one."""
        rows = self.instructions()
        rows["cycle"] -= first
        begin, end = span_of(self.machine, rows)
        image = image_of(self.memory)
        return Program(
            self.machine, rows, texts_of(rows), image, inputs, outputs, self.model.origins, end - begin, bounds
        )


def span_of(machine: StreamingMachine, rows: np.ndarray) -> tuple[int, int]:
    """The cycle of the first issue, and the one in which all lanes are done."""
    if not len(rows):
        return 0, 0
    last = rows["cycle"] + (rows["count"] - 1) * rows["period"] + _delays(machine)[rows["opcode"]]
    return int(rows["cycle"].min()), int(last.max()) + machine.lanes.tiles


def _delays(machine: StreamingMachine) -> np.ndarray:
    """Cycles from the issue of each opcode to its result."""
    latency = machine.latency
    late = {
        Opcode.READ: latency.read,
        Opcode.WRITE: latency.write,
        Opcode.LOAD_WEIGHTS: latency.load_weights,
        Opcode.INSTALL_WEIGHTS: latency.install_weights,
        Opcode.MULTIPLY: latency.multiply,
        Opcode.ACCUMULATE: latency.accumulate,
        Opcode.ALU: latency.alu,
        Opcode.SEND: latency.send,
        Opcode.RECEIVE: latency.receive,
    }
    return np.array([late[op] for op in Opcode])
