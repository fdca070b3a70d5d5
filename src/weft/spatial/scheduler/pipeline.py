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
from weft.spatial.scheduler.bank_halves import portions
from weft.spatial.scheduler.expression import streams_of
from weft.spatial.scheduler.layer_reads import CONSTANT_STREAMS, LayerReads, inward, outward
from weft.spatial.scheduler.mesh import Stage
from weft.spatial.scheduler.turns import Worker
from weft.spatial.scheduler.weight_places import TilePlace

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
        self.constants_until: dict[int, int] = {}
        """For each half, the last cycle in which constants are taken."""
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
        most = self.machine.matrix.accumulator_rows if passes > 1 else longest
        period = max(1, workers[0].of // len(self.chains.copies))
        first = self.memory.halves.first.get(self.layer.output.number)
        parts = list(portions(longest, most, first))
        for part, (begin, count) in enumerate(parts):
            for number in range(passes):
                halves = {worker.half: worker.job.passes[number].tile for worker in workers}
                later = min((number * turns for _, turns in parts[part + 1 :]), default=None)
                start = self._install(halves, cursor, later)
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

    def _install(self, halves: dict[int, int | TensorTile], cursor: int, later: int | None) -> int:
        """Load and install tiles, each in the planes of a half; the cycle in which they can be used.

        Where they are used again, it is so many cycles after the rows of now have passed.
        """
        latency = self.machine.latency
        wanted = {half: tile for half, tile in halves.items() if self.installed.get(half, (-1, 0))[0] != tile}
        if not wanted:
            return cursor
        start = cursor + latency.install_weights - 1
        for half, tile in wanted.items():
            if half in self.installed:
                earliest = self.installed[half][1] + self._loads(tile) + self._ready(tile) + latency.install_weights
                start = max(start, earliest)
        places = {half: self._place(half, tile, start, later) for half, tile in wanted.items() if isinstance(tile, int)}
        if any(each.beside_constants for each in places.values()):
            start = max(start, *(self._clear_from(half, wanted[half]) for half in places))
        for half, tile in wanted.items():
            install = start - latency.install_weights
            self.installed[half] = (tile, install)
            first = install - self._ready(tile) - self._loads(tile) + 1
            cycles = first + np.arange(self._loads(tile))
            if isinstance(tile, TensorTile):
                self._load_tensor(half, tile, cycles, install)
            else:
                self._load(half, tile, places[half], cycles, install)
        return start

    def _place(self, half: int, tile: int, start: int, later: int | None) -> TilePlace:
        """Where a tile lies that is used from a start on. Before the first of a layer others read their constants."""
        clear = half in self.installed and start >= self._clear_from(half, tile)
        if later is not None and self.constants:
            clear = clear and later >= self._clear_after(half, tile, self._last_sum - 1)
        return self.memory.tile(half, tile, clear)

    @property
    def _last_sum(self) -> int:
        """Cycles from a row's product to its result, in which constants are read for it."""
        latency = self.machine.latency
        return latency.multiply + latency.accumulate + self.machine.edge + self.sums[0].depth * latency.alu

    def _clear_from(self, half: int, tile: int | TensorTile) -> int:
        """The first start of a tile that is loaded from beside constants after these are read."""
        if half not in self.constants_until:
            return -(1 << 30)
        return self._clear_after(half, tile, self.constants_until[half])

    def _clear_after(self, half: int, tile: int | TensorTile, until: int) -> int:
        """The first start of a tile from beside constants that are taken until a cycle."""
        machine = self.machine
        first_load = until + machine.edge - 2 * machine.hop(self.memory.weights[half].inner) + 1
        return first_load + self._loads(tile) - 1 + self._ready(tile) + machine.latency.install_weights

    def _loads(self, tile: int | TensorTile) -> int:
        """The cycles in which a tile is on the streams."""
        if isinstance(tile, TensorTile):
            return -(-tile.count // self.machine.matrix.load_streams)
        return -(-self.memory.tile_rows[tile] // self.machine.matrix.load_streams)

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

    def _load(self, half: int, tile: int, place: TilePlace, cycles: np.ndarray, install: int) -> None:
        machine, memory = self.machine, self.memory
        width, per_half = machine.matrix.load_streams, machine.matrix.planes // 2
        load, tag, shape = np.arange(len(cycles)), memory.tile_tag + tile * machine.matrix.rows, self._shape(place.rows)
        stream = self._stream(outward(half), _WEIGHTS)
        numbers = np.arange(width)[:, None]
        slices = memory.units.memory(half, 0) + place.slices[:, None]
        way = machine.edge - np.abs(self._positions(slices))
        self._emit(
            Opcode.READ,
            np.broadcast_to(slices, (width, len(load))),
            cycles - way - machine.latency.read,
            result=np.broadcast_to(stream + numbers, (width, len(load))),
            address=place.addresses[:, None] + load,
            tag=tag + load * width + numbers,
        )
        columns = {"source0": stream, "address": load, "want0": tag + load * width, "tag": tag}
        detail, rows = (shape | width, place.rows) if shape else (0, 0)
        for plane in range(half * per_half, (half + 1) * per_half):
            queue = memory.units.plane(plane, 0)
            self._emit(Opcode.LOAD_WEIGHTS, queue, cycles, **columns, detail=detail)
            self._emit(Opcode.INSTALL_WEIGHTS, queue, install, tag=tag, address=rows, detail=shape)
            self.loaded += place.rows / machine.matrix.rows

    def _shape(self, rows: int) -> int:
        """What loads of so many rows have in common; 0 where these are all."""
        if rows >= self.machine.matrix.rows:
            return 0
        return LoadDetail(0, False, 0, self.machine.lanes.tiles).shape

    def _multiply(
        self, worker: Worker, rows: np.ndarray, steps: np.ndarray, times: np.ndarray, number: int, last: bool
    ) -> None:
        machine, memory, latency = self.machine, self.memory, self.machine.latency
        source, step, job = self.layer.source, worker.job.passes[number], worker.job
        assert source is not None, "a layer with passes has one"
        places, blocks, lane = step.positions[rows], step.blocks[rows], worker.number % (machine.matrix.planes // 2)
        stream, edge = self._stream(outward(worker.half), _ACTIVATIONS + lane), machine.edge * (2 * worker.half - 1)
        tags = source.tags(blocks, places)
        copy = self._copy(worker)
        self._read_tensor(source, copy, blocks, places, times, edge, stream)
        if self.twice:
            slices = memory.tensor_slices(source, copy, source.residue(blocks, places))
            cycles = times - np.abs(self._positions(slices) - edge)
            self.asked = np.concatenate([self.asked, (slices.astype(np.int64) << 32) + cycles])
        tile, shape = step.tile, 0
        if isinstance(tile, TensorTile):
            wanted = int(tile.tensor.tags(tile.block, np.array(tile.first)))
            shape = LoadDetail(0, tile.columns, tile.first_tile, tile.tiles).shape
        else:
            wanted, shape = memory.tile_tag + tile * machine.matrix.rows, self._shape(memory.tile_rows[tile])
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
            ends = times + self._last_sum
            if self.constants:
                self.constants_until[worker.half] = max(int(ends.max()), self.constants_until.get(worker.half, 0))
            if self.twice:
                self.later.append((worker, rows, ends))
            else:
                self._express(worker, rows, ends)

    def _copy(self, worker: Worker) -> int:
        """The copy of the source that a plane reads: those next to the middle are for planes on its other side.

        What crosses the middle goes past the slices before it twice, to memory and back.
        """
        planes, source = self.machine.matrix.planes, self.layer.source
        assert source is not None, "a layer with passes has one"
        if source.root.split is not None:
            return int(worker.half == source.half)
        across = worker.of == planes and source.half == 0
        return (worker.place + planes // 2) % planes if across else worker.place

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
        copies = self.memory.copies_of(output) if output.dtype.itemsize == 1 else output.dtype.itemsize
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
