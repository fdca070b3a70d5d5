"""Products of few rows: all planes take different weights, which come on every stream, and rows pass in between.

A row meets a tile once, so a layer is as fast as its weights are loaded. Both planes of a half load at the same time,
sixteen streams each, from 32 slices; in the cycle in which a tile is installed nothing is loaded, and the rows of the
tile before it pass on a stream of the weights:

    edge, cycle       0 … 19       20                       21 … 40      41
    streams           tile k       rows of tile k - 1       tile k + 1   rows of tile k
    plane             loads        multiplies, installs     loads        multiplies, installs

Slices next to the middle hold tensors and constants as ever. Where an expression asks a slice of weights for a constant
or writes to it, the load waits for a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np

from weft.spatial.isa import ADDS, EMITS, NONE, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Job, Layer, Placed
from weft.spatial.scheduler.expression import streams_of
from weft.spatial.scheduler.layer_reads import inward, outward
from weft.spatial.scheduler.memory_map import MemoryMap
from weft.spatial.scheduler.pipeline import LayerPipeline
from weft.spatial.scheduler.turns import RowJob, Worker

MOST_ROWS = 16
"""Beyond this many rows, planes that share their weights are as fast."""


def is_gemv(machine: StreamingMachine, memory: MemoryMap, layer: Layer) -> bool:
    """Whether a layer is bound by its weights: few rows, and more tiles than are loaded once for all."""
    if layer.source is None or memory.first_wide < 2 * 4 or len(layer.output.shape) != 2:
        return False
    if any(each.border or each.packing.slots > 1 for each in (layer.source, layer.output)):
        return False
    tiles = [step.tile for job in layer.jobs for step in job.passes]
    # What one load of all planes brings is there in time anyway: loaded ahead, while the layer before it runs.
    if len(tiles) <= machine.matrix.planes or any(not isinstance(each, int) for each in tiles):
        return False
    if len(set(tiles)) < len(tiles):
        return False
    blocks = [[step.block for step in job.passes] for job in layer.jobs]
    if any(each != blocks[0] for each in blocks):
        return False
    beside = any(each.tensor.root is layer.source.root for each in streams_of(layer.root))
    return not beside and max(len(job.positions) for job in layer.jobs) <= MOST_ROWS


def rows_of(source: Placed, block: int, per_load: int) -> int:
    """The rows of a tile that meet a block: those of its lanes that hold something, in whole loads."""
    if source.order is None:
        held = min(source.lanes, source.channels - block * source.lanes)
    else:
        lanes = source.order[block * source.lanes : (block + 1) * source.lanes]
        held = int(np.flatnonzero(lanes >= 0).max(initial=-1)) + 1
    return max(1, -(-held // per_load)) * per_load


@dataclass(frozen=True)
class _Step:
    """What all planes do at once: a pass of their jobs, or nothing where one has none left."""

    workers: list[Worker]
    number: int
    last: bool


@dataclass
class GemvPipeline(LayerPipeline):
    """Emits a layer of few rows, counting cycles from the arrival of its first weights."""

    taken_cycles: set[int] = field(default_factory=set[int])
    """When a load would meet another access of its slice."""
    seen: int = 0

    def run(self) -> None:
        """Emit everything."""
        cursor = ready = 0
        before: _Step | None = None
        for step in self._steps():
            loads = [self._tile_rows(worker, step.number) for worker in step.workers]
            most = max(loads) // self.machine.matrix.load_streams
            cycles = np.array(list(islice(self._free(cursor), most)))
            last = int(cycles[-1])
            install = last + self.machine.latency.load_weights
            if before:
                start = max(last + 1, ready)
                install = max(install, start + self._multiply_all(before, start) - 1)
            for worker, rows in zip(step.workers, loads, strict=True):
                self._load_wide(worker, step.number, rows, cycles, install)
            cursor, before = install + 1, step
            ready = install + self.machine.latency.install_weights
        if before:
            self._multiply_all(before, ready)
        self._read_constants()

    def _steps(self) -> Iterator[_Step]:
        planes, per_half = self.machine.matrix.planes, self.machine.matrix.planes // 2
        # One after another in each half, so that neighbours are computed by different copies of the expression.
        order = [half * per_half + (at + half + 1) % per_half for at in range(per_half) for half in (0, 1)]
        jobs = self.layer.jobs
        for first in range(0, len(jobs), planes):
            own = jobs[first : first + planes]
            # Of fewer jobs than planes, those have them whose slices have most room.
            roomy = sorted(order, key=lambda plane: -self.memory.wide_room(*divmod(plane, per_half)))[: len(own)]
            workers = [
                self._worker(plane, job) for plane, job in zip((n for n in order if n in roomy), own, strict=True)
            ]
            passes = len(workers[0].job.passes)
            for number in range(passes):
                yield _Step(workers, number, number == passes - 1)

    def _worker(self, plane: int, job: Job) -> Worker:
        rows = np.arange(len(job.positions))
        planes = self.machine.matrix.planes
        return Worker(plane, plane // (planes // 2), RowJob.of([job]), rows, rows, planes)

    def _free(self, cursor: int) -> Iterator[int]:
        return (cycle for cycle in count(cursor) if cycle not in self.taken_cycles)

    def _tile_rows(self, worker: Worker, number: int) -> int:
        assert self.layer.source is not None, "a product has a source"
        return rows_of(self.layer.source, int(worker.job.passes[number].blocks[0]), self.machine.matrix.load_streams)

    # Units

    def _load_wide(self, worker: Worker, number: int, rows: int, cycles: np.ndarray, install: int) -> None:
        machine, memory = self.machine, self.memory
        width, whole = machine.matrix.load_streams, rows == machine.matrix.rows
        lane, tile = worker.number % (machine.matrix.planes // 2), worker.job.passes[number].tile
        assert isinstance(tile, int), "weights are constant"
        address, tag = memory.wide_tile(worker.half, lane, tile, rows), memory.tile_tag + tile * machine.matrix.rows
        load = np.arange(rows // width)
        stream, numbers = self._stream(outward(worker.half), lane * width), np.arange(width)[:, None]
        slices = memory.wide_slice(worker.half, lane, 0) + numbers
        way, shape = machine.edge - np.abs(self._positions(slices)), (width, len(load))
        self._emit(
            Opcode.READ,
            np.broadcast_to(slices, shape),
            cycles[: len(load)] - way - machine.latency.read,
            result=np.broadcast_to(stream + numbers, shape),
            address=np.broadcast_to(address + load, shape),
            tag=tag + load * width + numbers,
        )
        queue, detail = memory.units.plane(worker.number, 0), self._shape(rows)
        columns = {"source0": stream, "address": load, "want0": tag + load * width, "tag": tag}
        self._emit(Opcode.LOAD_WEIGHTS, queue, cycles[: len(load)], **columns, detail=0 if whole else detail | width)
        self._emit(Opcode.INSTALL_WEIGHTS, queue, install, tag=tag, address=0 if whole else rows, detail=detail)
        self.loaded += rows / machine.matrix.rows
        self.seen = len(self.emitter.parts)

    def _multiply_all(self, step: _Step, start: int) -> int:
        """The rows of a pass on all planes; how many cycles they take."""
        machine = self.machine
        slots = self._slots(step)
        asked: dict[int, list[np.ndarray]] = {}
        ends: list[tuple[Worker, np.ndarray]] = []
        for worker, own in zip(step.workers, slots, strict=True):
            times = start + own
            self._multiply_one(worker, times, step)
            asked.setdefault(worker.half, []).append(np.stack([times, worker.rows]))
            taken = times + machine.latency.multiply + machine.latency.accumulate + machine.edge
            ends.append((worker, taken + self.sums[0].depth * machine.latency.alu))
        for half, parts in asked.items():
            times, rows = np.unique(np.concatenate(parts, axis=1), axis=1)
            self._read_rows(half, step, times, rows)
        if step.last:
            self.seen = len(self.emitter.parts)
            for worker, times in ends:
                self._express(worker, worker.rows, times)
            self._keep_clear()
        return max(int(own.max()) for own in slots) + 1

    def _slots(self, step: _Step) -> list[np.ndarray]:
        """When rows enter the planes, counted from the first: those that are emitted meet no other on their way.

        Results of a cycle are computed by different copies of the expression, have constants of different halves, and
        are written to different slices. What two planes of a half take in a cycle is the same row.
        """
        if not step.last:
            return [worker.steps for worker in step.workers]
        found: list[np.ndarray] = []
        taken: set[tuple[str, int, int]] = set()
        for worker in step.workers:
            residues = self.layer.output.residue(worker.job.blocks, worker.job.positions).tolist()
            copy, own, slot = worker.place % len(self.chains.copies), list[int](), 0
            for residue in residues:
                keys = (("copy", copy), ("half", worker.half), ("slice", residue))
                slot = next(at for at in count(slot) if not any((kind, which, at) in taken for kind, which in keys))
                taken.update((kind, which, slot) for kind, which in keys)
                own.append(slot)
            found.append(np.array(own))
        return found

    def _read_rows(self, half: int, step: _Step, times: np.ndarray, rows: np.ndarray) -> None:
        """Rows that all planes of a half take, on the last stream."""
        source, own = self.layer.source, step.workers[0].job.passes[step.number]
        assert source is not None, "a product has a source"
        stream = self._stream(outward(half), self.machine.streams.per_direction - 1)
        self._read_tensor(
            source, half, own.blocks[rows], own.positions[rows], times, self.machine.edge * (2 * half - 1), stream
        )

    def _multiply_one(self, worker: Worker, times: np.ndarray, step: _Step) -> None:
        machine, memory, job = self.machine, self.memory, worker.job
        source, own = self.layer.source, job.passes[step.number]
        assert source is not None and isinstance(own.tile, int), "a product by constant weights"
        lane = worker.number % (machine.matrix.planes // 2)
        tags = source.tags(own.blocks[worker.rows], own.positions[worker.rows])
        wanted, shape = (
            memory.tile_tag + own.tile * machine.matrix.rows,
            self._shape(self._tile_rows(worker, step.number)),
        )
        stream = self._stream(outward(worker.half), machine.streams.per_direction - 1)
        self._emit(
            Opcode.MULTIPLY,
            memory.units.plane(worker.number, 1),
            times,
            source0=stream,
            want0=tags,
            tag=wanted,
            detail=shape,
        )
        self._emit(
            Opcode.ACCUMULATE,
            memory.units.plane(worker.number, 2),
            times + machine.latency.multiply,
            result=self._stream(inward(worker.half), 4 * lane) if step.last else NONE,
            address=worker.steps,
            detail=(ADDS if step.number else 0) | (EMITS if step.last else 0),
            want0=tags,
            want1=wanted,
            tag=self.layer.output.tags(job.blocks[worker.rows], job.positions[worker.rows]),
        )
        self.multiplied += len(worker.rows)

    def _keep_clear(self) -> None:
        """Note when loads would meet what the expression reads and writes."""
        machine, edge = self.machine, self.machine.edge
        first, per_half = self.memory.first_wide, machine.memory.slices_per_half
        for _, part in self.emitter.parts[self.seen :]:
            if part["opcode"] in (Opcode.READ, Opcode.WRITE):
                slices, cycles = np.broadcast_arrays(part["queue"], part["cycle"])
                wide = slices % per_half >= first
                arrive = cycles[wide] + machine.latency.read + edge - np.abs(self._positions(slices[wide]))
                self.taken_cycles.update(arrive.tolist())
        for (half, place), parts in self.taken.items():
            times = np.unique(np.concatenate(parts, axis=1)[0])
            for byte in range(4):
                way = abs(self.memory.units.position(self.memory.constant_slice(half, place, byte)))
                self.taken_cycles.update((times + edge - 2 * way).tolist())
