"""Compiles a graph for a streaming machine: layers one after another, each as early as what it uses allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.ops.graph import FuncOp
from weft.spatial.isa import CHAINED, EAST, NONE, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.jobs import make_jobs
from weft.spatial.mapping.layers import Model
from weft.spatial.mapping.read_graph import read_graph
from weft.spatial.program import INSTRUCTION, Program
from weft.spatial.scheduler.choose_packings import choose_packings
from weft.spatial.scheduler.emit import groups_of, texts_of
from weft.spatial.scheduler.initial import image_of, port_of
from weft.spatial.scheduler.memory_map import MemoryMap
from weft.spatial.scheduler.pipeline import LayerPipeline


@dataclass
class Reservations:
    """Until when each resource is taken: queues, banks of memory, and streams in the frame that moves with them."""

    machine: StreamingMachine
    positions: np.ndarray
    ends: dict[int, int] = field(default_factory=dict[int, int])

    def earliest(self, spans: Mapping[int, tuple[int, int]]) -> int:
        """The first start at which no resource is taken twice."""
        own = -min(first for first, _ in spans.values())
        return max((self.ends[key] - first for key, (first, _) in spans.items() if key in self.ends), default=own)

    def take(self, spans: Mapping[int, tuple[int, int]], start: int) -> None:
        for key, (_, last) in spans.items():
            self.ends[key] = max(self.ends.get(key, start + last + 1), start + last + 1)

    def spans(self, columns: Mapping[str, np.ndarray]) -> dict[int, tuple[int, int]]:
        """The first and the last use of each resource, in cycles of the layer."""
        machine, op = self.machine, columns["opcode"]
        queue, cycle = columns["queue"], columns["cycle"]
        keys, times = [queue * 2 + (op == Opcode.WRITE)], [cycle]
        memory = op <= Opcode.WRITE
        bank = columns["address"][memory] // machine.memory.bank_words
        keys.append((1 << 20) + queue[memory] * machine.memory.banks + bank)
        times.append(cycle[memory])
        late = np.array([machine.latency.read, 0, 0, 0, 0, machine.latency.accumulate, machine.latency.alu])
        driven = (columns["result"] != NONE) & (columns["result"] < CHAINED)
        stream, place = columns["result"][driven], self.positions[queue[driven]]
        east = stream // machine.streams.per_direction == EAST
        # A stream is two: what is on its way to the middle is gone when something else leaves it.
        outward = (place >= 0) == east
        width = np.where(op[driven] == Opcode.READ, 1, 4)
        points = cycle[driven] + late[op[driven]] - np.where(east, place, -place)
        for byte in range(4):
            kept = byte < width
            keys.append((2 << 20) + (stream[kept] + byte) * 2 + outward[kept])
            times.append(points[kept])
        every, at = np.concatenate(keys), np.concatenate(times)
        order = np.argsort(every, kind="stable")
        every, at = every[order], at[order]
        starts = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
        lows, highs = np.minimum.reduceat(at, starts), np.maximum.reduceat(at, starts)
        return {int(k): (int(a), int(b)) for k, a, b in zip(every[starts], lows, highs, strict=True)}


def compile_graph(function: FuncOp, machine: StreamingMachine, constants: Mapping[str, np.ndarray]) -> Program:
    """The schedule of a function; arguments that are constants are resident in memory."""
    model = read_graph(function, constants, machine.width)
    choose_packings(model, machine)
    model.layers = [make_jobs(model, layer) for layer in model.layers]
    return schedule_model(model, machine)


def schedule_model(model: Model, machine: StreamingMachine) -> Program:
    """The schedule of layers."""
    memory = MemoryMap(machine, model)
    positions = np.array([memory.units.position(queue) for queue in range(memory.units.planes_end)])
    reservations = Reservations(machine, positions)
    done: dict[int, int] = {}
    groups: list[np.ndarray] = []
    finish, multiplied, computed, loads = 0, 0, 0, 0
    for layer in model.layers:
        pipeline = LayerPipeline(machine, memory, layer)
        pipeline.run()
        columns = pipeline.emitter.columns()
        spans = reservations.spans(columns)
        ready = [done[tensor] - first for tensor, first in pipeline.reads.items() if tensor in done]
        start = max([reservations.earliest(spans), *ready])
        reservations.take(spans, start)
        columns["cycle"] = columns["cycle"] + start
        done[layer.output.number] = start + pipeline.written
        finish = max(finish, start + pipeline.written)
        groups.append(groups_of(columns))
        multiplied += pipeline.multiplied
        computed += int((columns["opcode"] == Opcode.ALU).sum())
        loads += pipeline.loaded
    instructions = np.concatenate(groups) if groups else np.zeros(0, INSTRUCTION)
    first = int(instructions["cycle"].min()) if len(instructions) else 0
    instructions["cycle"] -= first
    planes = machine.matrix.planes
    bounds = {
        "MXM": -(-multiplied // planes),
        "VXM": -(-computed // machine.alus),
        "weights": -(-loads * machine.load_cycles // planes),
        "MACs": -(-model.macs // machine.int8_macs),
    }
    return Program(
        machine,
        instructions,
        texts_of(instructions),
        image_of(memory),
        [port_of(memory, tensor, every=True) for tensor in model.inputs],
        [port_of(memory, tensor, every=False) for tensor in model.outputs],
        model.origins,
        finish - first + machine.lanes.tiles,
        bounds,
    )
