"""Fills every plane with weights at once: what a machine needs at the least before it can multiply.

All streams of a half carry weights, half of them for each plane, so nothing else can flow outward meanwhile.
"""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import EAST, WEST, Opcode, Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.program import Image, Program
from weft.spatial.scheduler.emit import Emitter, groups_of, texts_of


def install_all_planes(machine: StreamingMachine, tiles: np.ndarray) -> Program:
    """A program that loads and installs a tile [planes, rows, columns] in each plane."""
    units, emitter, load = Units(machine), Emitter(), np.arange(machine.load_cycles)
    width, per_half = machine.matrix.load_streams, machine.matrix.planes // 2
    edge_first = machine.memory.slices_per_half - per_half * width
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    rows = np.arange(machine.matrix.rows)
    farthest = machine.edge - machine.hop(edge_first)
    arrive = machine.latency.read + farthest + load
    install = int(arrive[-1]) + machine.latency.load_weights
    for plane in range(machine.matrix.planes):
        half, own = divmod(plane, per_half)
        tag = plane * machine.matrix.rows
        stream = (EAST if half else WEST) * machine.streams.per_direction + own * width
        first = units.memory(half, edge_first + own * width)
        for number in range(width):
            way = machine.edge - abs(units.position(first + number))
            emitter.emit(
                Opcode.READ,
                first + number,
                arrive - way - machine.latency.read,
                result=stream + number,
                address=load,
                tag=tag + load * width + number,
            )
        queue = units.plane(plane, 0)
        emitter.emit(
            Opcode.LOAD_WEIGHTS, queue, arrive, source0=stream, address=load, want0=tag + load * width, tag=tag
        )
        emitter.emit(Opcode.INSTALL_WEIGHTS, queue, install, tag=tag)
        parts.append((first + rows % width, rows // width, tag + rows, tiles[plane].view(np.uint8)))
    instructions = groups_of(emitter.columns())
    image = Image(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    cycles = install + machine.latency.install_weights + machine.lanes.tiles
    return Program(machine, instructions, texts_of(instructions), image, [], [], ["installs"], cycles)
