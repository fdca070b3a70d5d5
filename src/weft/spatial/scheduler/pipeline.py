"""The pipeline of a layer: read → multiply → accumulate → vector unit → write, without a stop in memory on the way.

All units keep a fixed distance from the cycle τ in which a row enters a plane, so a layer is scheduled by giving each
row its τ: rows follow each other at the interval that the vector unit allows, passes follow when their weights are
there, and the weights of the next pass are loaded while this one runs.

    row        read activations   multiply   accumulate   ALUs, the product first taken   write
    cycle      τ - way - d        τ          τ + d        …, + edge                       … + way
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import ADDS, CHAINED, EAST, EMITS, NONE, WEST, LoadDetail, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.jobs import aligned_lines
from weft.spatial.mapping.layers import RESIDUES, Constant, Layer, Placed, Stream, TensorTile
from weft.spatial.scheduler.emit import Emitter
from weft.spatial.scheduler.expression import (
    TENSOR_STREAMS,
    chains_of,
    constants_of,
    in_one_half,
    padding_constants,
    streams_of,
)
from weft.spatial.scheduler.memory_map import CONSTANTS, MemoryMap
from weft.spatial.scheduler.mesh import Chains, Stage
from weft.spatial.scheduler.turns import Turns, Worker

# Streams by what they carry. Outward, to the edge: weights, results to be written, activations. Inward, to the middle:
# sums, constants, tensors of the expression. What the vector unit takes and what it makes have different numbers.
_WEIGHTS, _OUTPUTS, _ACTIVATIONS = 0, 16, 30
_SUMS, _CONSTANTS = 0, (8, 12, 24)


class CrowdedError(UnsupportedError):
    """A slice would have to be read twice in a cycle: rows follow each other too fast."""


@dataclass
class LayerPipeline:
    """Emits a layer, counting cycles from its first multiplication."""

    machine: StreamingMachine
    memory: MemoryMap
    layer: Layer
    pace: int = 1
    """Cycles from a row to the next where nothing is multiplied."""
    emitter: Emitter = field(default_factory=Emitter)
    reads: dict[int, int] = field(default_factory=dict[int, int])
    """The first cycle in which each tensor is read."""
    written: int = 0
    """The cycle in which the output is all in memory."""
    multiplied: int = 0
    loaded: float = 0
    """Tiles that were loaded; one of which only some rows are is a part of one."""

    def __post_init__(self) -> None:
        self.chains: Chains = chains_of(self.machine, self.layer)
        self.constants = list({id(each): each for each in constants_of(self.layer.root)}.values())
        if len(self.constants) > CONSTANTS:
            raise UnsupportedError(
                f"an expression has {len(self.constants)} constants", hint=f"at most {CONSTANTS} fit"
            )
        self.turns = Turns(self.machine, self.layer, len(self.chains.copies))
        self.taken: dict[tuple[int, int], list[np.ndarray]] = {}
        self.installed: dict[int, tuple[int | TensorTile, int]] = {}
        self.spare = self.machine.matrix.planes // 2 if in_one_half(self.layer) else 0
        self.asked = np.zeros(0, np.int64)
        self.twice = any(each.tensor is self.layer.source for each in streams_of(self.layer.root))
        """Whether what is multiplied is read beside too: from copies that the planes leave, once these are known."""
        self.later: list[tuple[Worker, np.ndarray, np.ndarray]] = []
        self.sums = [stage for stage in self.chains.copies[0] if "product" in stage.node.operands]

    # Time

    def run(self) -> None:
        """Emit everything."""
        cursor = 0
        for workers in self.turns.rounds():
            cursor = self._round(workers, cursor) if workers[0].job.passes else self._plain(workers, cursor)
        for worker, rows, ends in self.later:
            self._express(worker, rows, ends)
        self._read_constants()

    def _round(self, workers: list[Worker], cursor: int) -> int:
        longest = max(int(worker.steps[-1]) + 1 for worker in workers if len(worker.rows))
        passes = max(len(worker.job.passes) for worker in workers)
        size = self.machine.matrix.accumulator_rows if passes > 1 else longest
        period = max(1, workers[0].of // len(self.chains.copies))
        for begin in range(0, longest, size):
            count = min(size, longest - begin)
            for number in range(passes):
                halves = {worker.half: worker.job.passes[number].tile for worker in workers}
                start = self._install(halves, cursor)
                last = number == passes - 1
                for worker in workers:
                    own = (worker.steps >= begin) & (worker.steps < begin + count)
                    rows, steps = worker.rows[own], worker.steps[own] - begin
                    if len(rows):
                        step = period if last else 1
                        phase = worker.place // len(self.chains.copies) if last else 0
                        self._multiply(worker, rows, steps, start + steps * step + phase, number, last)
                cursor = start + count * (period if last else 1)
        return cursor

    def _plain(self, workers: list[Worker], cursor: int) -> int:
        for worker in workers:
            if len(worker.rows):
                turns = worker.steps * self.pace
                self._express(worker, worker.rows, cursor + turns + self._depth * self.machine.latency.alu)
        return cursor + self.pace * max(int(worker.steps[-1]) + 1 for worker in workers if len(worker.rows))

    @property
    def _depth(self) -> int:
        return self.chains.depth

    # Units

    def _install(self, halves: dict[int, int | TensorTile], cursor: int) -> int:
        """Load and install tiles, each in the planes of a half; the cycle in which they can be used."""
        latency = self.machine.latency
        wanted = {half: tile for half, tile in halves.items() if self.installed.get(half, (-1, 0))[0] != tile}
        if not wanted:
            return cursor
        start = cursor + latency.install_weights - 1
        for half, tile in wanted.items():
            if half in self.installed:
                earliest = self.installed[half][1] + self._loads(tile) + self._ready(tile) + latency.install_weights
                start = max(start, earliest)
        for half, tile in wanted.items():
            install = start - latency.install_weights
            self.installed[half] = (tile, install)
            first = install - self._ready(tile) - self._loads(tile) + 1
            cycles = first + np.arange(self._loads(tile))
            if isinstance(tile, TensorTile):
                self._load_tensor(half, tile, cycles, install)
            else:
                self._load(half, tile, cycles, install)
        return start

    def _loads(self, tile: int | TensorTile) -> int:
        """The cycles in which a tile is on the streams."""
        if isinstance(tile, TensorTile):
            return -(-tile.count // self.machine.matrix.load_streams)
        return self.machine.load_cycles

    def _ready(self, tile: int | TensorTile) -> int:
        """How many cycles after its last load a tile can be installed."""
        latency = self.machine.latency
        turned = isinstance(tile, TensorTile) and tile.columns
        return latency.load_weights + (latency.transpose if turned else 0)

    def _load_tensor(self, half: int, tile: TensorTile, cycles: np.ndarray, install: int) -> None:
        """Load vectors of a tensor: those of a cycle lie in the slices of all its copies, a word of each."""
        machine, memory = self.machine, self.memory
        width, per_half = machine.matrix.load_streams, machine.matrix.planes // 2
        if width > RESIDUES * memory.copies:
            raise UnsupportedError(
                f"{width} vectors of a tensor are loaded in a cycle", hint="lower matrix.load_streams"
            )
        stream = self._stream(outward(half), _WEIGHTS)
        edge = machine.edge * (2 * half - 1)
        for number in range(min(width, tile.count)):
            places = np.arange(tile.first + number, tile.first + tile.count, width)
            own = cycles[: len(places)]
            self._read_tensor(tile.tensor, number // RESIDUES, tile.block, places, own, edge, stream + number)
        counts = np.minimum(width, tile.count - np.arange(len(cycles)) * width)
        shape = LoadDetail(0, tile.columns, tile.first_tile, tile.tiles).shape
        first = int(tile.tensor.tags(tile.block, np.array(tile.first)))
        rows = np.arange(len(cycles))
        for plane in range(half * per_half, (half + 1) * per_half):
            queue = memory.units.plane(plane, 0)
            self._emit(
                Opcode.LOAD_WEIGHTS,
                queue,
                cycles,
                source0=stream,
                address=rows,
                want0=first + rows * width,
                tag=first,
                detail=shape | counts,
            )
            self._emit(Opcode.INSTALL_WEIGHTS, queue, install, tag=first, address=tile.count, detail=shape)
            self.loaded += 1

    def _load(self, half: int, tile: int, cycles: np.ndarray, install: int) -> None:
        machine, memory, load = self.machine, self.memory, np.arange(self.machine.load_cycles)
        width, per_half = machine.matrix.load_streams, machine.matrix.planes // 2
        address, tag = memory.tile(half, tile), memory.tile_tag + tile * machine.matrix.rows
        stream = self._stream(outward(half), _WEIGHTS)
        numbers = np.arange(width)[:, None]
        slices = memory.weight_slice(half, 0) + numbers
        way = machine.edge - np.abs(self._positions(slices))
        shape = (width, len(load))
        self._emit(
            Opcode.READ,
            np.broadcast_to(slices, shape),
            cycles - way - machine.latency.read,
            result=np.broadcast_to(stream + numbers, shape),
            address=np.broadcast_to(address + load, shape),
            tag=tag + load * width + numbers,
        )
        for plane in range(half * per_half, (half + 1) * per_half):
            queue = memory.units.plane(plane, 0)
            wants = tag + load * width
            self._emit(Opcode.LOAD_WEIGHTS, queue, cycles, source0=stream, address=load, want0=wants, tag=tag)
            self._emit(Opcode.INSTALL_WEIGHTS, queue, install, tag=tag)
            self.loaded += 1

    def _multiply(
        self, worker: Worker, rows: np.ndarray, steps: np.ndarray, times: np.ndarray, number: int, last: bool
    ) -> None:
        machine, memory, latency = self.machine, self.memory, self.machine.latency
        source, step, job = self.layer.source, worker.job.passes[number], worker.job
        assert source is not None, "a layer with passes has one"
        places, lane = step.positions[rows], worker.number % (machine.matrix.planes // 2)
        stream, edge = self._stream(outward(worker.half), _ACTIVATIONS + lane), machine.edge * (2 * worker.half - 1)
        tags = source.tags(step.block, places)
        self._read_tensor(source, worker.place, step.block, places, times, edge, stream)
        if self.twice:
            slices = memory.tensor_slices(source, worker.place, source.residue(step.block, places))
            cycles = times - np.abs(self._positions(slices) - edge)
            self.asked = np.concatenate([self.asked, (slices.astype(np.int64) << 32) + cycles])
        tile, shape = step.tile, 0
        if isinstance(tile, TensorTile):
            wanted = int(tile.tensor.tags(tile.block, np.array(tile.first)))
            shape = LoadDetail(0, tile.columns, tile.first_tile, tile.tiles).shape
        else:
            wanted = memory.tile_tag + tile * machine.matrix.rows
        queue = memory.units.plane(worker.number, 1)
        self._emit(Opcode.MULTIPLY, queue, times, source0=stream, want0=tags, tag=wanted, detail=shape)
        made = self.layer.output.tags(job.block, job.positions[rows])
        self._emit(
            Opcode.ACCUMULATE,
            memory.units.plane(worker.number, 2),
            times + latency.multiply,
            result=self._stream(inward(worker.half), _SUMS + 4 * lane) if last else NONE,
            address=steps % machine.matrix.accumulator_rows,
            detail=(ADDS if number else 0) | (EMITS if last else 0),
            want0=tags,
            want1=wanted,
            tag=made,
        )
        self.multiplied += len(rows)
        if last:
            taken = times + latency.multiply + latency.accumulate + machine.edge
            ends = taken + self.sums[0].depth * latency.alu
            if self.twice:
                self.later.append((worker, rows, ends))
            else:
                self._express(worker, rows, ends)

    def _express(self, worker: Worker, rows: np.ndarray, ends: np.ndarray) -> None:
        """The expression and its result; `ends` are the cycles in which results leave the vector unit."""
        copy, latency, output = worker.place % len(self.chains.copies), self.machine.latency, self.layer.output
        made = output.tags(worker.job.block, worker.job.positions[rows])
        stream = self._stream(outward(output.half), _OUTPUTS + copy * output.dtype.itemsize)
        for stage in self.chains.copies[copy]:
            times = ends - stage.depth * latency.alu
            sources, wants = self._operands(worker, rows, stage, times, made)
            self._emit(
                Opcode.ALU,
                self.memory.units.alu(stage.alu),
                times,
                function=int(stage.node.function),
                source0=sources[0],
                source1=sources[1],
                result=stream if stage.depth == 1 else NONE,
                want0=wants[0],
                want1=wants[1],
                tag=made,
            )
        places = worker.job.positions[rows]
        residues, address = output.residue(worker.job.block, places), output.address(worker.job.block, places)
        copies = self.memory.copies if output.dtype.itemsize == 1 else output.dtype.itemsize
        detail = 16 * output.dtype.itemsize
        for number in range(copies):
            slices = self.memory.tensor_slices(output, number, residues)
            cycles = ends + np.abs(self._positions(slices))
            byte = number if output.dtype.itemsize > 1 else 0
            self._emit(
                Opcode.WRITE, slices, cycles, source0=stream + byte, address=address, want0=made, detail=detail + byte
            )
            self.written = max(self.written, int(cycles.max()) + latency.write)

    def _operands(
        self, worker: Worker, rows: np.ndarray, stage: Stage, times: np.ndarray, made: np.ndarray
    ) -> tuple[list[int], list[np.ndarray | int]]:
        sources: list[int] = [NONE, NONE]
        wants: list[np.ndarray | int] = [0, 0]
        lane = worker.number % (self.machine.matrix.planes // 2)
        for at, operand in enumerate(stage.node.operands):
            maker = stage.makers[at]
            if maker is not None:
                sources[at], wants[at] = CHAINED + maker, made
            elif isinstance(operand, Constant):
                place = next(n for n, each in enumerate(self.constants) if each is operand)
                kinds = self._kinds(worker, rows)
                self.taken.setdefault((worker.half, place), []).append(np.stack([times, kinds]))
                tags = {kind: self._constant(worker.half, place, kind)[1] for kind in np.unique(kinds).tolist()}
                sources[at] = self._stream(inward(worker.half), _CONSTANTS[place])
                wants[at] = np.array([tags[kind] for kind in kinds.tolist()])
            elif isinstance(operand, Stream):
                sources[at], wants[at] = self._read_stream(worker, rows, operand, times)
            else:
                sources[at], wants[at] = self._stream(inward(worker.half), _SUMS + 4 * lane), made
        return sources, wants

    def _read_stream(
        self, worker: Worker, rows: np.ndarray, operand: Stream, times: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Read a tensor of the expression."""
        tensors, output, tensor = streams_of(self.layer.root), self.layer.output, operand.tensor
        number = next(n for n, each in enumerate(tensors) if each is operand)
        copy = worker.place % len(self.chains.copies)
        if tensor.dtype.itemsize > 1:
            return self._read_wide(worker, rows, operand, number * len(self.chains.copies) + copy, times)
        numbers = self._tensor_streams()
        if len(tensors) * len(self.chains.copies) > len(numbers):
            raise UnsupportedError(f"a window of {len(tensors)} pixels is too large", hint="pool in two steps")
        stream = self._stream(inward(tensor.half), numbers[number * len(self.chains.copies) + copy])
        line, column = np.divmod(worker.job.pixels[rows], output.width)
        aligned = aligned_lines(operand, output)
        assert aligned is not None, "packings are chosen so that operands are aligned"
        places = tensor.position(np.array(aligned)[line], column * operand.stride[1] + operand.offset[1])
        block = worker.job.block % tensor.blocks
        copies = self._free_copies(tensor, tensor.residue(block, places), times)
        self._read_tensor(tensor, copies, block, places, times, 0, stream)
        return stream, tensor.tags(block, places)

    def _read_wide(
        self, worker: Worker, rows: np.ndarray, operand: Stream, number: int, times: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Read a tensor of 32 bits of the expression: a byte of each copy."""
        tensor = operand.tensor
        taken = {_CONSTANTS[place] for place in range(len(self.constants))}
        free = [first for first in (0, 4, *_CONSTANTS) if first not in taken]
        stream = self._stream(inward(tensor.half), free[number])
        places = tensor.position(np.zeros(1, np.int64), worker.job.pixels[rows])
        block = worker.job.block % tensor.blocks
        residues = tensor.residue(block, places)
        tags = tensor.tags(block, places)
        for byte in range(4):
            slices = self.memory.tensor_slices(tensor, byte, residues)
            cycles = times - np.abs(self._positions(slices)) - self.machine.latency.read
            root = tensor.root.number
            self.reads[root] = min(int(cycles.min()), self.reads.get(root, 1 << 30))
            address = tensor.address(block, places)
            self._emit(Opcode.READ, slices, cycles, result=stream + byte, address=address, tag=tags, detail=byte)
        return stream, tags

    def _free_copies(self, tensor: Placed, residues: np.ndarray, times: np.ndarray) -> np.ndarray:
        """A copy for each vector, in which its slice is not read already: a window asks for several in a cycle."""
        copies = np.full(len(residues), self.spare, np.int64)
        for _ in range(self.memory.copies):
            slices = self.memory.tensor_slices(tensor, 0, residues) + copies * RESIDUES
            keys = (slices.astype(np.int64) << 32) + times - np.abs(self._positions(slices))
            taken = np.isin(keys, self.asked)
            if not taken.any():
                self.asked = np.concatenate([self.asked, keys])
                return copies
            copies[taken] += 1
            copies = np.minimum(copies, self.memory.copies - 1)
        raise CrowdedError(f"a window reads a slice of {tensor.name} too often in a cycle", hint="pool in two steps")

    def _tensor_streams(self) -> tuple[int, ...]:
        """Streams that bring tensors to the vector unit."""
        if self.layer.source is not None:
            return TENSOR_STREAMS
        free = (*TENSOR_STREAMS, 30, 31, *range(8))
        return free if self.constants else (*free, *range(8, 16), *range(24, 28))

    def _read_tensor(
        self,
        tensor: Placed,
        copies: np.ndarray | int,
        block: int,
        places: np.ndarray,
        times: np.ndarray,
        to: int,
        stream: int,
    ) -> None:
        """Read vectors so that they are at a position in given cycles."""
        slices = self.memory.tensor_slices(tensor, 0, tensor.residue(block, places)) + np.asarray(copies) * RESIDUES
        cycles = times - np.abs(self._positions(slices) - to) - self.machine.latency.read
        root = tensor.root.number
        self.reads[root] = min(int(cycles.min()), self.reads.get(root, 1 << 30))
        address, tags = tensor.address(block, places), tensor.tags(block, places)
        self._emit(Opcode.READ, slices, cycles, result=stream, address=address, tag=tags)

    def _read_constants(self) -> None:
        """Constants are read once for all that take them in a cycle."""
        for (half, place), parts in self.taken.items():
            times, kinds = np.concatenate(parts, axis=1)
            pairs = {kind: self._constant(half, place, kind) for kind in np.unique(kinds).tolist()}
            columns = (np.array([pairs[kind][part] for kind in kinds.tolist()]) for part in (0, 1))
            times, addresses, tags = np.unique(np.stack([times, *columns]), axis=1)
            stream = self._stream(inward(half), _CONSTANTS[place])
            for byte in range(4):
                slice_ = self.memory.constant_slice(half, place, byte)
                way = abs(self.memory.units.position(slice_))
                cycles = times - way - self.machine.latency.read
                self._emit(Opcode.READ, slice_, cycles, result=stream + byte, address=addresses, tag=tags)

    def _kinds(self, worker: Worker, rows: np.ndarray) -> np.ndarray:
        """Which constants rows take: by their block, and by the slots of their line that are padding."""
        lines = worker.job.pixels[rows] // self.layer.output.width
        return self.turns.variant_of[lines] * self.layer.output.blocks + worker.job.block

    def _constant(self, half: int, place: int, kind: int) -> tuple[int, int]:
        """The address and tag of a constant; in slots of padding it is what makes the result the padding's value."""
        lanes, output, constant = self.machine.width, self.layer.output, self.constants[place]
        variant, block = divmod(kind, output.blocks)
        if constant.values.size == 1 and len(output.shape) < 4:
            return self.memory.constant(half, place, np.full(lanes, constant.values[0], np.float32))
        part = output.arranged(constant.values)[block * lanes : (block + 1) * lanes].astype(np.float32)
        slots = np.tile(part, (output.packing.slots, 1))
        if output.border and self.turns.variants[variant]:
            forced = padding_constants(self.layer.root, output.fill)
            assert forced is not None, "a tensor whose padding cannot be computed is not packed"
            if id(constant) in forced:
                slots[list(self.turns.variants[variant])] = forced[id(constant)]
        flat = slots.reshape(-1)
        return self.memory.constant(half, place, np.pad(flat, (0, lanes - len(flat))))

    def _positions(self, slices: np.ndarray) -> np.ndarray:
        return self._place_of[slices]

    @cached_property
    def _place_of(self) -> np.ndarray:
        return np.array([self.memory.units.position(queue) for queue in range(self.machine.slices)])

    def _stream(self, direction: int, number: int) -> int:
        return direction * self.machine.streams.per_direction + number

    def _emit(
        self, opcode: Opcode, queue: np.ndarray | int, cycle: np.ndarray | int, **columns: np.ndarray | int
    ) -> None:
        self.emitter.emit(opcode, queue, cycle, origin=self.layer.origin, **columns)


def outward(half: int) -> int:
    """The direction from the middle to the edge of a half."""
    return EAST if half else WEST


def inward(half: int) -> int:
    """The direction from the edge of a half to the middle."""
    return WEST if half else EAST
