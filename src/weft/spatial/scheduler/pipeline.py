"""The pipeline of a layer: read → multiply → accumulate → vector unit → write, without a stop in memory on the way.

All units keep a fixed distance from the cycle τ in which a row enters a plane, so a layer is scheduled by giving each
row its τ: rows follow each other at the interval that the vector unit allows, passes follow when their weights are
there, and the weights of the next pass are loaded while this one runs.

    row        read activations   multiply   accumulate   ALUs, the product first taken   write
    cycle      τ - way - d        τ          τ + d        …, + edge                       … + way
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.isa import ADDS, CHAINED, EMITS, NONE, LoadDetail, Opcode
from weft.spatial.mapping.layers import RESIDUES, Constant, Stream, TensorTile
from weft.spatial.scheduler.expression import streams_of
from weft.spatial.scheduler.layer_reads import CONSTANT_STREAMS, LayerReads, inward, outward
from weft.spatial.scheduler.mesh import Stage
from weft.spatial.scheduler.turns import Worker

# Streams by what they carry. Outward, to the edge: weights, results to be written, activations. Inward, to the middle:
# sums, constants, tensors of the expression. What the vector unit takes and what it makes have different numbers.
_WEIGHTS, _OUTPUTS, _ACTIVATIONS = 0, 16, 30
_SUMS = 0


@dataclass
class LayerPipeline(LayerReads):
    """Emits a layer, counting cycles from its first multiplication."""

    written: int = 0
    """The cycle in which the output is all in memory."""
    multiplied: int = 0
    loaded: float = 0
    """Tiles that were loaded; one of which only some rows are is a part of one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.installed: dict[int, tuple[int | TensorTile, int]] = {}
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
        places, blocks, lane = step.positions[rows], step.blocks[rows], worker.number % (machine.matrix.planes // 2)
        stream, edge = self._stream(outward(worker.half), _ACTIVATIONS + lane), machine.edge * (2 * worker.half - 1)
        tags = source.tags(blocks, places)
        self._read_tensor(source, worker.place, blocks, places, times, edge, stream)
        if self.twice:
            slices = memory.tensor_slices(source, worker.place, source.residue(blocks, places))
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
        made = self.layer.output.tags(job.blocks[rows], job.positions[rows])
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
        blocks, places = worker.job.blocks[rows], worker.job.positions[rows]
        made = output.tags(blocks, places)
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
        residues, address = output.residue(blocks, places), output.address(blocks, places)
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
                sources[at] = self._stream(inward(worker.half), CONSTANT_STREAMS[place])
                wants[at] = np.array([tags[kind] for kind in kinds.tolist()])
            elif isinstance(operand, Stream):
                sources[at], wants[at] = self._read_stream(worker, rows, operand, times)
            else:
                sources[at], wants[at] = self._stream(inward(worker.half), _SUMS + 4 * lane), made
        return sources, wants
