"""Schedules products of a single vector by many weights, as in a token's step: the weights' streams are the bound.

Every weight is used once, so loading is all there is. All streams of a half carry weights, half of them to each plane,
and each plane has tiles of its own: nothing lies in memory twice. In a plane an interval of cycles brings a tile, and
the cycle that is left at its end brings the vector that the tile before is multiplied by:

    weights   L L L … L I L L L … L I L L …      L a load, I the install of what was loaded
    vector              m           m            m is multiplied by what was installed an interval before

All that happens repeats with this interval (modulo scheduling), at a phase of its own for each plane. A part of a
result is written while others are computed, and the next product starts with those that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from weft.spatial.isa import ADDS, CHAINED, EAST, EMITS, NONE, WEST, Opcode, Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Constant, Layer, Model, Node, Placed, Stream
from weft.spatial.program import Program
from weft.spatial.scheduler.chip import span_of
from weft.spatial.scheduler.emit import Emitter, groups_of, texts_of
from weft.spatial.scheduler.expression import constants_of, streams_of
from weft.spatial.scheduler.mesh import Stage, place_expression
from weft.spatial.scheduler.stack_memory import CONSTANTS, TENSOR_SLICES, StackMemory

# Streams from the west half to the middle and beyond: sums, vectors of the planes in the east, constants, tensors of
# expressions. To the west: vectors of the planes there, results.
_SUMS, _RESULTS, _CONSTANTS, _BESIDE = 0, 8, (16, 20), (24, 25)


def is_vector_stack(model: Model, machine: StreamingMachine) -> bool:
    """Whether all that a model does is products of single vectors by resident weights, and the machine has the room."""
    slices = TENSOR_SLICES + 4 * CONSTANTS + machine.matrix.load_streams * (machine.matrix.planes // 2)
    streams = machine.matrix.load_streams * (machine.matrix.planes // 2)
    if slices > machine.memory.slices_per_half or streams > machine.streams.per_direction or machine.memory.banks < 2:
        return False
    return bool(model.layers) and all(_fits(layer) for layer in model.layers)


def _fits(layer: Layer) -> bool:
    tensors, beside = [layer.output, layer.source], streams_of(layer.root)
    plain = all(each is not None and each.lines * each.width == 1 and not each.border for each in tensors)
    narrow = all(each.tensor.dtype.itemsize == 1 and each.tensor.pixels == 1 for each in beside)
    constants = {id(each) for each in constants_of(layer.root)}
    resident = all(job.passes and all(isinstance(each.tile, int) for each in job.passes) for job in layer.jobs)
    aligned = len(set(_product_depths(layer.root, 1))) == 1
    few = len(constants) <= CONSTANTS and len(beside) <= len(_BESIDE)
    return plain and narrow and resident and few and aligned and not layer.loaded and layer.output.within is None


def _product_depths(node: Node, depth: int) -> Iterator[int]:
    """How far from the last operation those are that take the product."""
    for operand in node.operands:
        if isinstance(operand, Node):
            yield from _product_depths(operand, depth + 1)
        elif operand == "product":
            yield depth


def _sum_depth(stages: tuple[Stage, ...]) -> int:
    return next(stage.depth for stage in stages if "product" in stage.node.operands)


def schedule_vector_stack(model: Model, machine: StreamingMachine) -> Program | None:
    """The schedule; None where no phases of the planes keep accesses to memory apart."""
    interval = machine.load_cycles + machine.latency.load_weights
    others = range(1, interval)
    for phases in combinations(others, machine.matrix.planes - 1):
        spread = np.diff([0, *phases, interval])
        if spread.min() >= max(1, interval // (machine.matrix.planes + 1)):
            stack = _VectorStack(machine, model, interval, (0, *phases))
            if stack.run():
                return stack.program()
    return None


@dataclass
class _Tiles:
    """What a plane does: for each of its tiles, when a vector meets it, and what these are."""

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


class _VectorStack:
    def __init__(self, machine: StreamingMachine, model: Model, interval: int, phases: tuple[int, ...]) -> None:
        self.machine, self.model, self.interval, self.phases = machine, model, interval, phases
        self.units, self.emitter = Units(machine), Emitter()
        self.planes = [_Tiles() for _ in phases]
        self.memory = StackMemory(machine, model)
        self.there: dict[tuple[int, int], int] = {}
        """The cycle from which a block of a tensor can be read."""
        self.placed: dict[int, tuple[Stage, ...]] = {}
        self.computed = 0

    def run(self) -> bool:
        """Emit everything; whether no slice and no unit is asked for two things at once."""
        for layer in self.model.layers:
            for number, job in enumerate(layer.jobs):
                free = [
                    each.met[-1] if each.met else phase for each, phase in zip(self.planes, self.phases, strict=True)
                ]
                self._job(layer, int(np.argmin(free)), number, job.block)
        for plane, done in enumerate(self.planes):
            if done.met:
                self._weights(plane, done)
                self._vectors(plane, done)
        columns = self.emitter.columns()
        bank = np.where(columns["opcode"] <= Opcode.WRITE, columns["address"] // self.machine.memory.bank_words, 0)
        keys = (columns["queue"] * self.machine.memory.banks + bank) << 40
        keys += columns["cycle"] + (1 << 30)
        self.columns = columns
        return len(np.unique(keys)) == len(keys)

    # Time

    def _job(self, layer: Layer, plane: int, number: int, block: int) -> None:
        """A block of a result: its passes one after another, then its expression."""
        machine, done, latency = self.machine, self.planes[plane], self.machine.latency
        passes = layer.jobs[number].passes
        source, output = layer.source, layer.output
        assert source is not None, "a product has a source"
        tag = output.tag + block
        for step, each in enumerate(passes):
            ready = self.there.get((source.number, each.block), -(1 << 30)) + self._way(plane) + latency.read
            if step == len(passes) - 1:
                ready = max(ready, self._beside_ready(layer, block) - self._to_vector_unit)
            previous = done.met[-1] if done.met else self.phases[plane] - self.interval
            met = max(previous + self.interval, ready)
            met += (self.phases[plane] - met) % self.interval
            assert isinstance(each.tile, int), "weights are resident"
            done.met.append(met)
            done.tiles.append(each.tile)
            done.taken.append(source.tag + each.block)
            done.read_at.append(source.base + each.block)
            done.made.append(tag)
            done.rows.append(number % machine.matrix.accumulator_rows)
            done.details.append((ADDS if step else 0) | (EMITS if step == len(passes) - 1 else 0))
            done.origins.append(layer.origin)
        self._express(layer, plane, block, done.met[-1] + self._to_vector_unit)

    @property
    def _to_vector_unit(self) -> int:
        """Cycles from when a vector meets weights to when its sums reach the vector unit."""
        latency = self.machine.latency
        return latency.multiply + latency.accumulate + self.machine.edge

    def _stages(self, layer: Layer) -> tuple[Stage, ...]:
        """The expression of a layer on the mesh of ALUs."""
        if layer.output.number not in self.placed:
            self.placed[layer.output.number] = place_expression(layer.root, self.machine.vector, 1).copies[0]
        return self.placed[layer.output.number]

    def _beside_ready(self, layer: Layer, block: int) -> int:
        """The first cycle in which a sum may reach the vector unit, so that the tensors beside it can be read."""
        stages, latency = self._stages(layer), self.machine.latency
        way = abs(self.units.position(self.units.memory(0, 0))) + latency.read
        earliest = -(1 << 30)
        for stage in stages:
            for operand in stage.node.operands:
                if isinstance(operand, Stream):
                    there = self.there.get((operand.tensor.number, block), -(1 << 30))
                    earliest = max(earliest, there + way - (_sum_depth(stages) - stage.depth) * latency.alu)
        return earliest

    def _way(self, plane: int) -> int:
        """Registers from where vectors lie to a plane."""
        return self.machine.edge + (1 if self.units.half_of_plane(plane) else -1)

    def _express(self, layer: Layer, plane: int, block: int, taken: int) -> None:
        """What the vector unit computes of a sum that reaches it in a cycle, and the write of it."""
        latency, output = self.machine.latency, layer.output
        stages = self._stages(layer)
        ends = taken + _sum_depth(stages) * latency.alu
        tag, east = output.tag + block, self.units.half_of_plane(plane)
        own = plane % (self.machine.matrix.planes // 2)
        constants = list({id(each): each for each in constants_of(layer.root)}.values())
        beside = streams_of(layer.root)
        for stage in stages:
            time = ends - stage.depth * latency.alu
            sources, wants = [NONE, NONE], [0, 0]
            for at, operand in enumerate(stage.node.operands):
                maker = stage.makers[at]
                if maker is not None:
                    sources[at], wants[at] = CHAINED + maker, tag
                elif isinstance(operand, Constant):
                    place = next(n for n, each in enumerate(constants) if each is operand)
                    sources[at], wants[at] = self._read_constant(layer, operand, place, block, time)
                elif isinstance(operand, Stream):
                    number = next(n for n, each in enumerate(beside) if each is operand)
                    sources[at] = _BESIDE[number]
                    wants[at] = self._read_beside(layer, operand.tensor, number, block, time)
                else:
                    sources[at] = self._stream(WEST if east else EAST, _SUMS + 4 * own)
                    wants[at] = tag
            self.emitter.emit(
                Opcode.ALU,
                self.units.alu(stage.alu),
                time,
                function=int(stage.node.function),
                source0=sources[0],
                source1=sources[1],
                result=self._stream(WEST, _RESULTS) if stage.depth == 1 else NONE,
                want0=wants[0],
                want1=wants[1],
                tag=tag,
                origin=layer.origin,
            )
            self.computed += 1
        wide = output.dtype.itemsize
        for byte in range(wide):
            slice_ = self.units.memory(0, byte)
            cycle = ends + abs(self.units.position(slice_))
            self._emit(
                layer,
                Opcode.WRITE,
                slice_,
                cycle,
                source0=self._stream(WEST, _RESULTS) + byte,
                address=output.base + block,
                want0=tag,
                detail=16 * wide + byte,
            )
            self.there[output.number, block] = cycle + latency.write

    def _read_constant(self, layer: Layer, constant: Constant, place: int, block: int, time: int) -> tuple[int, int]:
        lanes, output = self.machine.width, layer.output
        values = output.arranged(constant.values) if constant.values.size > 1 else np.full(1, constant.values[0])
        part = np.full(lanes, values[0]) if values.size == 1 else values[block * lanes : (block + 1) * lanes]
        padded = np.pad(part.astype(np.float32), (0, lanes - len(part)))
        address, tag = self.memory.constant(padded, place)
        for byte in range(4):
            slice_ = self.memory.constant_slice(place, byte)
            self._emit(
                layer,
                Opcode.READ,
                slice_,
                time - abs(self.units.position(slice_)) - self.machine.latency.read,
                result=self._stream(EAST, _CONSTANTS[place]) + byte,
                address=address,
                tag=tag,
            )
        return self._stream(EAST, _CONSTANTS[place]), tag

    def _read_beside(self, layer: Layer, tensor: Placed, number: int, block: int, time: int) -> int:
        slice_ = self.units.memory(0, 0)
        cycle = time - abs(self.units.position(slice_)) - self.machine.latency.read
        result, tag = self._stream(EAST, _BESIDE[number]), tensor.tag + block
        self._emit(layer, Opcode.READ, slice_, cycle, result=result, address=tensor.base + block, tag=tag)
        return tag

    # Units

    def _weights(self, plane: int, done: _Tiles) -> None:
        """Loads end just before a tile is installed, in the cycle in which a vector meets the one before it."""
        machine, load = self.machine, np.arange(self.machine.load_cycles)
        width = machine.matrix.load_streams
        met = np.array(done.met)
        installs = np.concatenate([[met[0] - self.interval], met[:-1]])
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

    def _vectors(self, plane: int, done: _Tiles) -> None:
        machine, latency, half = self.machine, self.machine.latency, self.units.half_of_plane(plane)
        met, own = np.array(done.met), plane % (self.machine.matrix.planes // 2)
        stream = self._weight_stream(plane) + machine.matrix.load_streams - 1
        tags, origins = np.array(done.taken), np.array(done.origins)
        weights = np.array(done.tiles) * machine.matrix.rows
        self.emitter.emit(
            Opcode.READ,
            self.units.memory(0, 0),
            met - self._way(plane) - latency.read,
            result=stream,
            address=np.array(done.read_at),
            tag=tags,
            origin=origins,
        )
        queue = self.units.plane(plane, 1)
        self.emitter.emit(Opcode.MULTIPLY, queue, met, source0=stream, want0=tags, tag=weights, origin=origins)
        details = np.array(done.details)
        inward = self._stream(WEST if half else EAST, _SUMS + 4 * own)
        self.emitter.emit(
            Opcode.ACCUMULATE,
            self.units.plane(plane, 2),
            met + latency.multiply,
            result=np.where(details & EMITS, inward, NONE),
            address=np.array(done.rows),
            detail=details,
            want0=tags,
            want1=weights,
            tag=np.array(done.made),
            origin=origins,
        )

    def _weight_stream(self, plane: int) -> int:
        """The first of the streams that bring the weights of a plane."""
        half, own = self.units.half_of_plane(plane), plane % (self.machine.matrix.planes // 2)
        return self._stream(EAST if half else WEST, own * self.machine.matrix.load_streams)

    def _stream(self, direction: int, number: int) -> int:
        return direction * self.machine.streams.per_direction + number

    def _emit(self, layer: Layer, opcode: Opcode, queue: int, cycle: int, **columns: int) -> None:
        self.emitter.emit(opcode, queue, cycle, origin=layer.origin, **columns)

    # The program

    def program(self) -> Program:
        machine = self.machine
        rows = groups_of(self.columns)
        rows["cycle"] -= span_of(machine, rows)[0]
        begin, end = span_of(machine, rows)
        inputs = [self.memory.port(each) for each in self.model.inputs]
        outputs = [self.memory.port(each) for each in self.model.outputs]
        return Program(
            machine,
            rows,
            texts_of(rows),
            self.memory.image(),
            inputs,
            outputs,
            self.model.origins,
            end - begin,
            self._bounds(),
        )

    def _bounds(self) -> Mapping[str, int]:
        machine, planes = self.machine, self.machine.matrix.planes
        tiles = sum(len(each.met) for each in self.planes)
        return {
            "MXM": -(-tiles // planes),
            "VXM": -(-self.computed // machine.alus),
            "weights": -(-tiles * machine.load_cycles // planes),
            "MACs": -(-self.model.macs // machine.int8_macs),
        }
