"""Runs a schedule for a mesh, event by event: what is in each core when, bit by bit, and the cycle of the last result.

It has no code in common with the scheduler and the verifier. A tile that is not there when it is used is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from weft.errors import GuardError, WeftError
from weft.spatial.isa import MEANINGS
from weft.spatial.mesh.program import Compute, MeshProgram, Multiply, Source, Tile, Transfer


class MeshSimulationError(WeftError):
    """A schedule that does what the machine cannot do, found while it ran."""


@dataclass(frozen=True)
class MeshSimulation:
    """Cycle 0 is the start; the last is the one in which the last result is there."""

    cycles: int
    results: Sequence[np.ndarray]
    busy: dict[str, int]
    """Cycles in which units and links were busy, summed over them."""


Event = Transfer | Multiply | Compute


def simulate_mesh(program: MeshProgram, arrays: Sequence[np.ndarray]) -> MeshSimulation:
    """Run a schedule on arguments."""
    return _Run(program, arrays).run()


class _Run:
    def __init__(self, program: MeshProgram, arrays: Sequence[np.ndarray]) -> None:
        self.program, self.size = program, program.machine.core.tile
        self.memory: dict[tuple[int, Tile], np.ndarray] = {}
        self.sums: dict[tuple[int, Tile], np.ndarray] = {}
        self.steps: dict[tuple[int, Tile], dict[int, np.ndarray]] = {}
        self.order = count()
        self.pending: list[Any] = []
        """A cycle, whether something ends or begins in it, a number of its own, what it is, and what it made."""
        self.last = 0
        self.busy = {"matrix": 0, "vector": 0, "links": 0}
        given = {number: array for number, array in zip(program.inputs, arrays, strict=True)}
        for number, tensor in enumerate(program.tensors):
            held = given.get(number, tensor.data)
            if held is None:
                continue
            if held.size != int(np.prod(tensor.shape)) or (number in given and held.dtype != tensor.dtype):
                said = f"argument {tensor.name} is {held.dtype}{list(held.shape)}"
                raise GuardError(f"{said}, the program takes {tensor.dtype}{list(tensor.shape)}")
            whole = self._padded(held.reshape(tensor.shape).astype(tensor.dtype))
            for tile, core in tensor.owners.items():
                rows, columns = tile.row * self.size, tile.column * self.size
                self.memory[core, tile] = whole[rows : rows + self.size, columns : columns + self.size]

    def _padded(self, array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, -length % self.size) for length in array.shape])

    def run(self) -> MeshSimulation:
        """What begins and what ends, in the order of time; in one cycle what ends comes first."""
        begins: list[Event] = [*self.program.transfers, *self.program.multiplies, *self.program.computes]
        self.pending += [(each.cycle, 1, next(self.order), each, None) for each in begins]
        heapify(self.pending)
        while self.pending:
            cycle, _, _, event, value = heappop(self.pending)
            if value is not None:
                self._end(cycle, event, value)
            else:
                self._begin(cycle, event)
        results = [self._result(number) for number in self.program.outputs]
        return MeshSimulation(self.last, results, self.busy)

    def _begin(self, cycle: int, event: Event) -> None:
        machine = self.program.machine
        match event:
            case Transfer():
                held = self._held(event.source, event.tile, cycle - machine.latency.inject, event)
                length = -(-held.nbytes // machine.network.link_bytes)
                self.busy["links"] += length * len(event.hops)
                for hop in event.hops:
                    if hop.target in event.targets:
                        time = (hop.before + 1) * machine.network.hop_cycles + length + machine.latency.receive
                        self._later(cycle + time, event, (hop.target, held))
            case Multiply():
                held = self._held(event.core, event.tile, cycle, event)
                product = held.astype(np.int32) @ self.program.weights[event.weights].astype(np.int32)
                length = -(-(self.size**3) // machine.core.int8_macs)
                self.busy["matrix"] += length
                self._later(cycle + length + machine.latency.matrix, event, (event.core, product))
            case Compute():
                taken = [self._operand(event, kind, ref, cycle) for kind, ref in event.operands]
                with np.errstate(all="ignore"):
                    made = MEANINGS[event.function].compute(*taken)
                length = -(-(self.size**2) // machine.core.vector_lanes)
                self.busy["vector"] += length
                self._later(cycle + length + machine.latency.vector, event, (event.core, made))

    def _end(self, cycle: int, event: Event, value: tuple[int, np.ndarray]) -> None:
        core, made = value
        match event:
            case Transfer():
                self.memory[core, event.tile] = made
            case Multiply():
                if event.adds and (core, event.into) not in self.sums:
                    self._refuse(event, "adds to sums that are not there")
                before = self.sums[core, event.into] if event.adds else np.int32(0)
                self.sums[core, event.into] = made + before
            case Compute():
                self.steps.setdefault((core, event.into), {})[event.step] = made
                if event.last:
                    self.memory[core, event.into] = made.astype(self.program.tensors[event.into.tensor].dtype)
                    self.last = max(self.last, cycle)

    def _later(self, cycle: int, event: Event, value: tuple[int, np.ndarray]) -> None:
        heappush(self.pending, (cycle, 0, next(self.order), event, value))

    def _held(self, core: int, tile: Tile, cycle: int, event: Event) -> np.ndarray:
        if (core, tile) not in self.memory or cycle < 0:
            self._refuse(event, "uses a tile that is not there")
        return self.memory[core, tile]

    def _operand(self, event: Compute, kind: Source, ref: Tile | int, cycle: int) -> np.ndarray:
        key = (event.core, event.into)
        if kind == Source.TILE and isinstance(ref, Tile):
            return self._held(event.core, ref, cycle, event)
        if kind == Source.SUMS and key in self.sums:
            return self.sums[key]
        if kind == Source.CONSTANT and isinstance(ref, int) and 0 <= ref < len(self.program.constants):
            return self.program.constants[ref]
        if kind == Source.STEP and isinstance(ref, int) and ref in self.steps.get(key, {}):
            return self.steps[key][ref]
        return self._refuse(event, "takes what is not there")

    def _refuse(self, event: Event, what: str) -> np.ndarray:
        core = event.source if isinstance(event, Transfer) else event.core
        said = f"core {core}, cycle {event.cycle}: {type(event).__name__.lower()} {what}"
        raise MeshSimulationError(said, hint="verifying the schedule says why")

    def _result(self, number: int) -> np.ndarray:
        tensor = self.program.tensors[number]
        whole = self._padded(np.zeros(tensor.shape, tensor.dtype))
        for tile, core in tensor.owners.items():
            if (core, tile) not in self.memory:
                raise MeshSimulationError(f"the schedule ended and did not compute all of {tensor.name}")
            rows, columns = tile.row * self.size, tile.column * self.size
            whole[rows : rows + self.size, columns : columns + self.size] = self.memory[core, tile]
        return whole[: tensor.shape[0], : tensor.shape[1]]
