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

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import ADDS, CHAINED, EAST, EMITS, NONE, WEST, Function, Opcode, Units
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Constant, Layer, Model, Node, Pass, Placed, Stream
from weft.spatial.program import Program
from weft.spatial.scheduler.chip import span_of
from weft.spatial.scheduler.emit import Emitter, groups_of, texts_of
from weft.spatial.scheduler.expression import constants_of, streams_of
from weft.spatial.scheduler.memory_map import STREAMS
from weft.spatial.scheduler.mesh import Stage, place_expression
from weft.spatial.scheduler.stack_memory import CONSTANTS, TENSOR_SLICES, StackMemory
from weft.spatial.scheduler.stack_planes import PlaneEmission, StackPlane
from weft.spatial.scheduler.stack_shares import Share, share_out, summed

# Streams from the west half to the middle and beyond: sums, vectors of the planes in the east, constants, tensors of
# expressions, sums that other planes have written. To the west: vectors of the planes there, results.
_RESULTS, _CONSTANTS, _BESIDE, _OTHER_SUMS = 8, (16, 20), (24, 25), 8
_EVER = -(1 << 30)
"""When what memory holds from the start is there."""
_Issue = tuple[Opcode, int, int, dict[str, int]]
"""An instruction: its queue, its cycle, and the other columns."""


def is_vector_stack(model: Model, machine: StreamingMachine) -> bool:
    """Whether all that a model does is products of single vectors by resident weights, and the machine has the room."""
    slices = TENSOR_SLICES + 4 * CONSTANTS + machine.matrix.load_streams * (machine.matrix.planes // 2)
    streams = max(STREAMS, machine.matrix.load_streams * (machine.matrix.planes // 2))
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
    """The schedule, in which the planes take their turns evenly; None where an expression is in its own way."""
    latency, planes = machine.latency, machine.matrix.planes
    # Tiles are loaded one after another, and each is installed from the cycle in which a vector meets the one before.
    interval = max(machine.load_cycles + latency.load_weights, latency.install_weights)
    stack = _VectorStack(machine, model, interval, tuple(plane * interval // planes for plane in range(planes)))
    if any(stack.is_crowded(layer) for layer in model.layers):
        return None
    stack.run()
    return stack.program()


@dataclass
class _Block:
    """A block of a result whose sums are not complete: the passes that are left."""

    layer: Layer
    block: int
    row: int
    """Of the accumulators; the one that is wanted until it is begun."""
    passes: list[Pass]
    begun: bool = False


def free_row(wanted: int, taken: Collection[int], rows: int) -> int:
    """The row that is wanted, or else the first that no open block has.

    Blocks are not done in order: of 257 in a plane, the last may begin while the first, whose row it wants, is open.
    """
    return wanted if wanted not in taken else next(row for row in range(rows) if row not in taken)


class _VectorStack:
    def __init__(self, machine: StreamingMachine, model: Model, interval: int, phases: tuple[int, ...]) -> None:
        self.machine, self.model, self.interval, self.phases = machine, model, interval, phases
        self.units, self.emitter = Units(machine), Emitter()
        self.planes = [StackPlane() for _ in phases]
        self.memory = StackMemory(machine, model)
        self.emission = PlaneEmission(machine, self.units, self.memory, self.emitter)
        self.there: dict[tuple[int, int], int] = {}
        """The cycle from which a block of a tensor can be read."""
        self.taken: set[tuple[int, int]] = set()
        """Ports, banks and ALUs that are in use, by the cycle."""
        self.placed: dict[int, tuple[Layer, tuple[Stage, ...]]] = {}
        """By what identifies an expression, its layer, which keeps it, and its operations on the mesh."""
        self.computed = 0

    def run(self) -> None:
        """Emit everything."""
        for layer in self.model.layers:
            self._layer(layer)
        for plane, done in enumerate(self.planes):
            if done.met:
                self.emission.weights(plane, done, self.interval)
                self.emission.vectors(plane, done)

    def is_crowded(self, layer: Layer) -> bool:
        """Whether an expression reads two vectors of one slice at once."""
        keys = [key for issue in self._express(layer, 0, 0, 0) for key in self._keys(issue)]
        return len(set(keys)) < len(keys)

    # Time

    def _layer(self, layer: Layer) -> None:
        """The blocks of a result, shared out to the planes, each of which takes what is there to be multiplied.

        A plane stays with a block until it is done, but for vectors that are still computed: meanwhile it begins the
        next ones, whose sums have accumulators of their own.
        """
        loads = [self._next(plane) for plane in range(len(self.planes))]
        ending = layer is self.model.layers[-1]
        shares = share_out(layer.jobs, loads, self.interval, ending)
        roots = self._roots(layer, max(each.of for each in shares))
        if roots is None:
            shares, roots = share_out(layer.jobs, loads, self.interval, False), {1: layer}
        # Sums that are added to others are written before these are done.
        for plane in range(len(self.planes)):
            own = [each for each in shares if each.plane == plane]
            parts = [each for each in own if not each.is_last]
            self._blocks(plane, parts, roots, ending and len(parts) == len(own))
        for plane in range(len(self.planes)):
            self._blocks(plane, [each for each in shares if each.plane == plane and each.is_last], roots, ending)

    def _roots(self, layer: Layer, most: int) -> dict[int, Layer] | None:
        """What is computed of a block of so many shares, and under -n of its nth: sums of 32 bits.

        None where the sum of that many is too much for the vector unit.
        """
        found, others = {1: layer}, list[Stream]()
        try:
            for number in range(most - 1):
                name = f"{layer.output.name} sums {number}"
                sums = replace(layer.output, name=name, dtype=np.dtype(np.int32), number=-1 - number)
                self.memory.place(sums)
                others.append(Stream(sums))
                found[-1 - number] = replace(layer, output=sums, root=Node(Function.COPY_I32, ("product",)))
                found[number + 2] = replace(layer, root=summed(layer.root, others))
            crowded = any(self.is_crowded(each) for each in found.values())
        except UnsupportedError:
            return None
        return None if crowded else found

    def _blocks(self, plane: int, shares: Sequence[Share], roots: Mapping[int, Layer], ending: bool) -> None:
        rows = self.machine.matrix.accumulator_rows
        blocks = [
            _Block(roots[each.of if each.is_last else -1 - each.number], each.block, number % rows, list(each.passes))
            for number, each in enumerate(shares)
        ]
        while blocks:
            self._pass(plane, blocks[:rows], ending and len(blocks) == 1 and len(blocks[0].passes) == 1)
            blocks[:] = [each for each in blocks if each.passes]

    def _next(self, plane: int) -> int:
        """The first cycle in which a vector can meet the next tile of a plane."""
        done = self.planes[plane]
        return done.met[-1] + self.interval if done.met else self.phases[plane]

    def _pass(self, plane: int, blocks: list[_Block], final: bool) -> None:
        """The first pass whose vector is there, or else the one whose vector is there first.

        The vector of a plane's final pass waits for no other tile, but for the install of its own.
        """
        done = self.planes[plane]
        step = 1 if final and done.met else self.interval
        first = done.met[-1] + self.machine.latency.install_weights if step == 1 else self._next(plane)
        best: tuple[int, _Block, Pass, list[_Issue]] | None = None
        for own in blocks:
            for each in own.passes:
                met, issues = self._earliest(own.layer, plane, own, each, first, step)
                if best is None or met < best[0]:
                    best = met, own, each, issues
                if met == first:
                    break
            if best is not None and best[0] == first:
                break
        assert best is not None, "a block that is not done has passes"
        met, own, each, issues = best
        layer, source = own.layer, own.layer.source
        assert source is not None and isinstance(each.tile, int), "a product by resident weights"
        if not own.begun:
            taken = {other.row for other in blocks if other.begun}
            own.row = free_row(own.row, taken, self.machine.matrix.accumulator_rows)
        self.taken.update(key for issue in issues for key in self._keys(issue))
        own.passes.remove(each)
        done.met.append(met)
        done.tiles.append(each.tile)
        done.taken.append(source.tag + each.block)
        done.read_at.append(source.base + each.block)
        done.made.append(layer.output.tag + own.block)
        done.rows.append(own.row)
        done.details.append((ADDS if own.begun else 0) | (0 if own.passes else EMITS))
        done.origins.append(layer.origin)
        own.begun = True
        for opcode, queue, cycle, columns in issues[1:]:  # the vectors of a plane are emitted together
            self.emitter.emit(opcode, queue, cycle, origin=layer.origin, **columns)
            self.computed += opcode == Opcode.ALU
            if opcode == Opcode.WRITE:
                self.there[layer.output.number, own.block] = cycle + self.machine.latency.write

    def _earliest(
        self, layer: Layer, plane: int, own: _Block, each: Pass, first: int, step: int
    ) -> tuple[int, list[_Issue]]:
        """When a pass can be from a cycle on, in steps, and what is issued for it apart from weights."""
        latency, source = self.machine.latency, layer.source
        assert source is not None, "a product has a source"
        ready = self.there.get((source.number, each.block), _EVER) + self.emission.way(plane) + latency.read
        last = len(own.passes) == 1
        if last:
            ready = max(ready, self._beside_ready(layer, own.block) - self._to_vector_unit)
        met = max(first, ready)
        met += (first - met) % step
        while True:
            address, cycle = source.base + each.block, met - self.emission.way(plane) - latency.read
            issues: list[_Issue] = [(Opcode.READ, self.units.memory(0, 0), cycle, {"address": address})]
            if last:
                issues += self._express(layer, plane, own.block, met + self._to_vector_unit)
            if not any(key in self.taken for issue in issues for key in self._keys(issue)):
                return met, issues
            met += step

    def _keys(self, issue: _Issue) -> Iterator[tuple[int, int]]:
        """What an instruction takes of its cycle: a port and a bank, or an ALU, and the stream of results."""
        opcode, queue, cycle, columns = issue
        if opcode == Opcode.ALU:
            yield 4 * queue, cycle
            if columns["result"] != NONE:
                yield -1, cycle
        else:
            yield 4 * queue + (opcode == Opcode.WRITE), cycle
            yield 4 * queue + 2 + columns["address"] // self.machine.memory.bank_words, cycle

    @property
    def _to_vector_unit(self) -> int:
        """Cycles from when a vector meets weights to when its sums reach the vector unit."""
        latency = self.machine.latency
        return latency.multiply + latency.accumulate + self.machine.edge

    def _stages(self, layer: Layer) -> tuple[Stage, ...]:
        """The expression of a layer on the mesh of ALUs."""
        if id(layer.root) not in self.placed:
            self.placed[id(layer.root)] = layer, place_expression(layer.root, self.machine.vector, 1).copies[0]
        return self.placed[id(layer.root)][1]

    def _beside_ready(self, layer: Layer, block: int) -> int:
        """The first cycle in which a sum may reach the vector unit, so that the tensors beside it can be read."""
        stages, latency = self._stages(layer), self.machine.latency
        earliest = _EVER
        for stage in stages:
            for operand in stage.node.operands:
                if isinstance(operand, Stream):
                    there = self.there.get((operand.tensor.number, block), _EVER)
                    last = self.units.memory(0, operand.tensor.dtype.itemsize - 1)
                    way = abs(self.units.position(last)) + latency.read
                    earliest = max(earliest, there + way - (_sum_depth(stages) - stage.depth) * latency.alu)
        return earliest

    def _express(self, layer: Layer, plane: int, block: int, taken: int) -> list[_Issue]:
        """What the vector unit computes of a sum that reaches it in a cycle, and the write of it."""
        latency, output = self.machine.latency, layer.output
        stages = self._stages(layer)
        ends = taken + _sum_depth(stages) * latency.alu
        tag = output.tag + block
        constants = list({id(each): each for each in constants_of(layer.root)}.values())
        beside = [each for each in streams_of(layer.root) if each.tensor.dtype.itemsize == 1]
        issues: list[_Issue] = []
        for stage in stages:
            time = ends - stage.depth * latency.alu
            sources, wants = [NONE, NONE], [0, 0]
            for at, operand in enumerate(stage.node.operands):
                maker = stage.makers[at]
                if maker is not None:
                    sources[at], wants[at] = CHAINED + maker, tag
                elif isinstance(operand, Constant):
                    place = next(n for n, each in enumerate(constants) if each is operand)
                    reads = self._read_constant(layer, operand, place, block, time)
                    sources[at], wants[at] = reads[0][3]["result"], reads[0][3]["tag"]
                    issues += reads
                elif isinstance(operand, Stream) and operand.tensor.dtype.itemsize > 1:
                    reads = self._read_sums(operand.tensor, block, time)
                    sources[at], wants[at] = reads[0][3]["result"], reads[0][3]["tag"]
                    issues += reads
                elif isinstance(operand, Stream):
                    number = next(n for n, each in enumerate(beside) if each is operand)
                    read = self._read_beside(operand.tensor, number, block, time)
                    sources[at], wants[at] = read[3]["result"], read[3]["tag"]
                    issues.append(read)
                else:
                    sources[at], wants[at] = self.emission.sums(plane), tag
            columns = {
                "function": int(stage.node.function),
                "source0": sources[0],
                "source1": sources[1],
                "result": self.emission.stream(WEST, _RESULTS) if stage.depth == 1 else NONE,
                "want0": wants[0],
                "want1": wants[1],
                "tag": tag,
            }
            issues.append((Opcode.ALU, self.units.alu(stage.alu), time, columns))
        wide = output.dtype.itemsize
        for byte in range(wide):
            slice_ = self.units.memory(0, byte)
            columns = {"source0": self.emission.stream(WEST, _RESULTS) + byte, "address": output.base + block}
            columns |= {"want0": tag, "detail": 16 * wide + byte}
            issues.append((Opcode.WRITE, slice_, ends + abs(self.units.position(slice_)), columns))
        return issues

    def _read_constant(self, layer: Layer, constant: Constant, place: int, block: int, time: int) -> list[_Issue]:
        lanes, output = self.machine.width, layer.output
        values = output.arranged(constant.values) if constant.values.size > 1 else np.full(1, constant.values[0])
        part = np.full(lanes, values[0]) if values.size == 1 else values[block * lanes : (block + 1) * lanes]
        padded = np.pad(part.astype(np.float32), (0, lanes - len(part)))
        address, tag = self.memory.constant(padded, place)
        issues: list[_Issue] = []
        for byte in range(4):
            slice_ = self.memory.constant_slice(place, byte)
            cycle = time - abs(self.units.position(slice_)) - self.machine.latency.read
            columns = {"result": self.emission.stream(EAST, _CONSTANTS[place]) + byte, "address": address, "tag": tag}
            issues.append((Opcode.READ, slice_, cycle, columns))
        return issues

    def _read_beside(self, tensor: Placed, number: int, block: int, time: int) -> _Issue:
        slice_ = self.units.memory(0, 0)
        cycle = time - abs(self.units.position(slice_)) - self.machine.latency.read
        columns = {"result": self.emission.stream(EAST, _BESIDE[number]), "address": tensor.base + block}
        return Opcode.READ, slice_, cycle, columns | {"tag": tensor.tag + block}

    def _read_sums(self, tensor: Placed, block: int, time: int) -> list[_Issue]:
        """Sums of 32 bits that another plane has computed: a byte of each slice."""
        issues: list[_Issue] = []
        for byte, slice_ in ((byte, self.units.memory(0, byte)) for byte in range(tensor.dtype.itemsize)):
            cycle = time - abs(self.units.position(slice_)) - self.machine.latency.read
            columns = {"result": self.emission.stream(EAST, _OTHER_SUMS) + byte, "address": tensor.base + block}
            issues.append((Opcode.READ, slice_, cycle, columns | {"tag": tensor.tag + block, "detail": byte}))
        return issues

    # The program

    def program(self) -> Program:
        machine, rows = self.machine, groups_of(self.emitter.columns())
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
