"""Whose turn it is: which rows of a layer's jobs each plane takes, and in which order.

Rows take turns on the planes, and all rows of a turn are written to different slices and take the same constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Job, Layer, TensorTile
from weft.spatial.scheduler.expression import constants_of, in_one_half

_FEW_ROWS = 16
"""Rows of a job, beyond which a tile is loaded for them alone."""


@dataclass(frozen=True)
class RowPass:
    """Input rows, each with its block, that are multiplied by a tile of weights."""

    tile: int | TensorTile
    blocks: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True)
class RowJob:
    """Rows of output, each with its block, that meet the same tiles: those of one job or of several."""

    blocks: np.ndarray
    positions: np.ndarray
    pixels: np.ndarray
    passes: tuple[RowPass, ...]
    joined: bool = False

    @staticmethod
    def of(jobs: Sequence[Job]) -> RowJob:
        passes = [
            RowPass(
                each[0].tile,
                np.concatenate([np.full(len(one.positions), one.block) for one in each]),
                np.concatenate([one.positions for one in each]),
            )
            for each in zip(*(job.passes for job in jobs), strict=True)
        ]
        return RowJob(
            np.concatenate([np.full(len(job.positions), job.block) for job in jobs]),
            np.concatenate([job.positions for job in jobs]),
            np.concatenate([job.pixels for job in jobs]),
            tuple(passes),
            len(jobs) > 1,
        )


def joined_jobs(machine: StreamingMachine, layer: Layer) -> list[RowJob]:
    """The jobs of a layer; those of few rows that meet the same tiles are one.

    Heads that share keys do: each of their tiles is loaded once, and their rows pass one after another.
    """
    if any(each.values.size > 1 for each in constants_of(layer.root)) or layer.output.border:
        return [RowJob.of([job]) for job in layer.jobs]
    most = machine.matrix.accumulator_rows
    found: list[list[Job]] = []
    like: dict[tuple[int | TensorTile, ...], list[Job]] = {}
    for job in layer.jobs:
        tiles = tuple(each.tile for each in job.passes)
        few = len(tiles) > 1 and len(job.positions) <= _FEW_ROWS
        own = like.get(tiles, []) if few else []
        if own and sum(len(each.positions) for each in own) + len(job.positions) <= most:
            own.append(job)
        else:
            found.append([job])
            if few:
                like[tiles] = found[-1]
    return [RowJob.of(each) for each in found]


@dataclass(frozen=True)
class Worker:
    """A plane, or without a product a copy of the expression, and the rows of a job that it takes."""

    number: int
    half: int
    job: RowJob
    rows: np.ndarray
    steps: np.ndarray
    """When each row has its turn, counted from the job's first."""
    of: int
    """How many take turns."""

    @property
    def place(self) -> int:
        """Which of those that take turns it is."""
        return self.number % self.of


@dataclass
class Turns:
    """The turns of a layer whose expression runs in so many copies side by side."""

    machine: StreamingMachine
    layer: Layer
    copies: int

    def __post_init__(self) -> None:
        padded = [self.layer.output.padded_slots(line) for line in range(self.layer.output.lines)]
        self.variants = list(dict.fromkeys(padded))
        """The slots that are padding in some lines."""
        self.variant_of = np.array([self.variants.index(each) for each in padded])

    def rounds(self) -> Iterator[list[Worker]]:
        """What runs at the same time: one job on all planes, or one in each half."""
        planes, jobs = self.machine.matrix.planes, joined_jobs(self.machine, self.layer)
        if not jobs[0].passes:
            copies = self.copies
            for job in jobs:
                yield [Worker(n, 0, job, *turns, copies) for n, turns in enumerate(self._turns(job, copies, False))]
            return
        per_half = planes // 2
        if in_one_half(self.layer):
            half = next((each.half for each in self.layer.tile_tensors), 0)
            for job in jobs:
                turns = enumerate(self._turns(job, per_half, False))
                yield [Worker(half * per_half + n, half, job, *each, per_half) for n, each in turns]
            return
        for pair in self._paired(jobs):
            if len(pair) == 2:
                yield [
                    Worker(half * per_half + n, half, job, *turns, planes)
                    for half, job in enumerate(pair)
                    for n, turns in enumerate(self._turns(job, per_half, False))
                ]
                continue
            turns = self._turns(pair[0], planes, planes % RESIDUES == 0)
            yield [Worker(n, n // per_half, pair[0], *each, planes) for n, each in enumerate(turns)]

    def _paired(self, jobs: Sequence[RowJob]) -> list[list[RowJob]]:
        """Two jobs at a time, one in each half, where that is as fast: each of their tiles is in one half then."""
        planes, left = self.machine.matrix.planes, list(jobs)
        found: list[list[RowJob]] = []
        while left:
            job = left.pop(0)
            together = self._span(job, planes)
            at = next((n for n, each in enumerate(left) if self._alike(job, each)), None)
            if at is None or self._span(job, planes // 2) > together + self._span(left[at], planes):
                found.append([job])
            else:
                found.append([job, left.pop(at)])
        return found

    def _alike(self, job: RowJob, other: RowJob) -> bool:
        """Whether two jobs can run at the same time: they have as many passes, and write to different slices."""
        if job.joined or other.joined or len(self.variants) > 1:
            return False
        return len(job.passes) == len(other.passes) and self._distinct(job, other)

    def _turns(self, job: RowJob, workers: int, by_slice: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of each worker and their turns; `by_slice`, no two workers write to one slice.

        All rows of a turn take the same constants, which are read once for all. Rows of several jobs, of which there
        are few, take their turns on one plane.
        """
        if job.joined:
            rows, none = np.arange(len(job.positions)), np.zeros(0, np.int64)
            return [(rows, rows), *[(none, none)] * (workers - 1)]
        kinds = self.variant_of[job.pixels // self.layer.output.width]
        edges = np.flatnonzero(np.diff(kinds, prepend=-1, append=-1))
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(workers)]
        turn = 0
        for begin, end in pairwise(edges.tolist()):
            rows, longest = np.arange(begin, end), 0
            residues = self.layer.output.residue(job.blocks[rows], job.positions[rows])
            for n in range(workers):
                own = rows[n::workers]
                if by_slice:
                    own = rows[residues == n % RESIDUES][n // RESIDUES :: workers // RESIDUES]
                found[n].append((own, turn + np.arange(len(own))))
                longest = max(longest, len(own))
            turn += longest
        return [(np.concatenate([a for a, _ in each]), np.concatenate([b for _, b in each])) for each in found]

    def _span(self, job: RowJob, workers: int) -> int:
        """Cycles of a job on so many planes."""
        rows = -(-len(job.positions) // workers)
        load = self.machine.load_cycles + self.machine.latency.load_weights
        period = self.machine.matrix.planes // self.copies
        tiles = [each.tile for each in job.passes]
        fresh = [one != other for one, other in zip(tiles, [None, *tiles], strict=False)]
        last = len(tiles) - 1
        return sum(max(load if new else 0, rows * (period if n == last else 1)) for n, new in enumerate(fresh))

    def _distinct(self, job: RowJob, other: RowJob) -> bool:
        """Whether two jobs, each on the planes of a half, never write to one slice in one cycle."""
        if len(job.positions) != len(other.positions):
            return False
        per_half = self.machine.matrix.planes // 2
        turns = -(-len(job.positions) // per_half)
        # Planes that have no row left in the last turn write nowhere.
        slices = np.broadcast_to(-1 - np.arange(2 * per_half), (turns, 2 * per_half)).copy()
        for half, each in enumerate((job, other)):
            own = np.zeros((turns, per_half), bool)
            own.reshape(-1)[: len(each.positions)] = True
            slices[:, half * per_half : (half + 1) * per_half][own] = self.layer.output.residue(
                each.blocks, each.positions
            )
        return bool(np.all(np.diff(np.sort(slices, axis=1), axis=1) > 0))
