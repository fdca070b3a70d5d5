"""Which tensors have both banks of their slices, so that a layer begins before the one before it has ended.

A bank is read or written in a cycle, not both. What a layer writes first is in one bank, and what it writes last in the
other; the next layer starts with the first while the last is on its way through the vector unit to memory:

    layer        rows 0 … 23, all passes      rows 24 … 48, all passes       rows 0 … 23 of the next layer
    bank 0       .                            written                        read
    bank 1       .                            .                              written, then read

So the rows of a layer with several passes are multiplied in two portions. What reads such a tensor has to be content
with two copies of it, one for the planes of each half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Layer, Model, Placed, TensorTile
from weft.spatial.scheduler.expression import chains_of, in_one_half, streams_of
from weft.spatial.scheduler.mesh import Chains
from weft.spatial.scheduler.turns import Turns, Worker

_COPIES, _MANY_PASSES = 2, 6
_FEW_ROWS = 32
"""A tensor of so few vectors in a block is written as a whole before anything of it is read."""


@dataclass(frozen=True)
class BankHalves:
    """The tensors in two banks, by number, and how layers are multiplied that make them."""

    late: Mapping[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    """For each of them, whether each of its words is written late: 1 for the second bank."""
    first: Mapping[int, int] = field(default_factory=dict[int, int])
    """For the tensor that a layer makes, the turns of the first portion of its rows."""
    passes: Mapping[int, int] = field(default_factory=dict[int, int])
    """The passes of that layer, whose tiles are loaded for each portion."""

    def sparing(self) -> Iterator[BankHalves]:
        """The same with fewer portions: tiles that are loaded twice are seldom clear of constants both times.

        First without those of layers of few passes, most of whose tiles are not, and then without any.
        """
        many = {number: turns for number, turns in self.first.items() if self.passes[number] >= _MANY_PASSES}
        plans = (self.first, many, dict[int, int]())
        for number, first in enumerate(plans):
            if first not in plans[:number]:
                yield replace(self, first=first)


NO_HALVES = BankHalves()


def portions(turns: int, most: int, first: int | None = None) -> Iterator[tuple[int, int]]:
    """Turns that accumulators hold at once, each with the first of them: equal parts, or after a given first one."""
    begin = 0
    if first is not None and 0 < first < turns:
        yield 0, first
        begin = first
    count = -(-(turns - begin) // most)
    for number in range(count):
        end = begin + -(-(turns - begin) // (count - number))
        yield begin, end - begin
        begin = end


def plan_halves(machine: StreamingMachine, model: Model) -> BankHalves:
    """Both banks for every tensor whose readers allow it."""
    if machine.memory.banks < 2:
        return NO_HALVES
    works = [_LayerWork(machine, layer) for layer in model.layers]
    late: dict[int, np.ndarray] = {}
    first: dict[int, int] = {}
    passes: dict[int, int] = {}
    chosen = _in_two_banks(model, works)
    for work in works:
        output = work.layer.output
        if output.number in chosen:
            if (portion := work.first_portion(late)) is not None:
                first[output.number] = portion
                passes[output.number] = len(work.layer.jobs[0].passes)
            late[output.number] = work.late_words(portion)
    return BankHalves(late, first, passes)


def _in_two_banks(model: Model, works: list[_LayerWork]) -> set[int]:
    """Tensors that one layer makes as a whole, and that others read two copies of at the most."""
    parts = {each.within.number for each in model.tensors if each.within is not None}
    found = {
        work.layer.output.number
        for work in works
        for tensor in [work.layer.output]
        if tensor.within is None and tensor.number not in parts
        if tensor.dtype.itemsize == 1 and tensor.lines * tensor.width > _FEW_ROWS
    }
    read: set[int] = set()
    for work in works:
        for tensor in work.read:
            read.add(tensor.number)
            if not work.takes_two(tensor):
                found.discard(tensor.number)
    return found & read


class _LayerWork:
    """What a layer does in which order."""

    def __init__(self, machine: StreamingMachine, layer: Layer) -> None:
        self.machine, self.layer = machine, layer
        self.chains: Chains = chains_of(machine, layer)
        self.rounds = list(Turns(machine, layer, len(self.chains.copies)).rounds())
        self.beside = [each.tensor.root for each in streams_of(layer.root)]
        source = [layer.source.root] if layer.source is not None else []
        self.read = [*source, *self.beside, *(each.root for each in layer.tile_tensors)]

    # What it reads

    def takes_two(self, tensor: Placed) -> bool:
        """Whether two copies of a tensor are enough."""
        layer = self.layer
        if layer.source is None or in_one_half(layer):
            return False
        if tensor is layer.source.root:
            return tensor not in self.beside and self._lanes_apart()
        return self.beside.count(tensor) * len(self.chains.copies) <= _COPIES

    def _lanes_apart(self) -> bool:
        """Whether planes of a half never ask one slice for two vectors of the source at once."""
        source = self.layer.source
        assert source is not None, "a layer with passes has one"
        for workers in self.rounds:
            for one, other in ((a, b) for a in workers for b in workers if a.half == b.half and a.number < b.number):
                _, left, right = np.intersect1d(one.steps, other.steps, return_indices=True)
                for mine, theirs in zip(one.job.passes, other.job.passes, strict=True):
                    own, far = one.rows[left], other.rows[right]
                    slices = source.residue(mine.blocks[own], mine.positions[own])
                    if np.any(slices == source.residue(theirs.blocks[far], theirs.positions[far])):
                        return False
        return True

    # What it writes

    def first_portion(self, late: Mapping[int, np.ndarray]) -> int | None:
        """The turns after which all passes of the rows so far are done; None where all rows are one portion.

        Loads of weights stay hidden under both portions. The rows of the first one meet nothing that is written late,
        if possible; and where windows of the next layer reach beyond their own row, it is larger by as much.
        """
        workers, layer, latency = self.rounds[0], self.layer, self.machine.latency
        passes = workers[0].job.passes
        if len(self.rounds) > 1 or len(passes) < 2 or any(isinstance(each.tile, TensorTile) for each in passes):
            return None
        turns = _turns_of(workers)
        load = self.machine.load_cycles + latency.load_weights + latency.install_weights
        most = min(turns - load, self.machine.matrix.accumulator_rows)
        if most < load:
            return None
        reach = layer.output.border * (layer.output.pitch + 1)
        wanted = -(-turns // 2) + -(-reach // self.machine.matrix.planes)
        met = min(self._turns_before(worker, late) for worker in workers)
        if load <= met < wanted:
            wanted = met
        return min(max(wanted, load), most)

    def _turns_before(self, worker: Worker, late: Mapping[int, np.ndarray]) -> int:
        """The turns of a plane before the first in which it takes what is written late."""
        source = self.layer.source
        turns = int(worker.steps.max(initial=-1)) + 1
        if source is None or source.number not in late:
            return turns
        for each in worker.job.passes:
            words = source.word(each.blocks[worker.rows], each.positions[worker.rows])
            turns = min(turns, int(worker.steps[late[source.number][words] > 0].min(initial=turns)))
        return turns

    def late_words(self, first: int | None) -> np.ndarray:
        """For each word of the output, 1 where it is written late.

        That is in the last portions of the layer, as many as take as long as a vector is on its way.
        """
        output = self.layer.output
        spans: list[int] = []
        written = np.full(output.words, -1, np.int64)
        for workers in self.rounds:
            turns, passes = _turns_of(workers), max(1, len(workers[0].job.passes))
            most = self.machine.matrix.accumulator_rows if passes > 1 else turns
            alone = len(self.rounds) == 1 and passes * turns > 0
            parts = list(portions(turns, most, first))
            if alone and len(parts) == 1:
                parts = list(portions(turns, -(-turns // 2)))
            for begin, count in parts:
                for worker in workers:
                    own = worker.rows[(worker.steps >= begin) & (worker.steps < begin + count)]
                    words = output.word(worker.job.blocks[own], worker.job.positions[own])
                    np.maximum.at(written, words, len(spans))
                period = max(1, workers[0].of // len(self.chains.copies))
                spans.append((passes - 1 + period) * count)
        # Words of a border belong to those before them.
        known = np.maximum.accumulate(np.where(written >= 0, np.arange(len(written)), 0))
        border = len(spans) - 1
        while border > 1 and sum(spans[border:]) < self._way:
            border -= 1
        return (written[known] >= max(1, border)).astype(np.int64)

    @property
    def _way(self) -> int:
        """Cycles from a product to that of the next layer, over the vector unit and memory."""
        latency, machine = self.machine.latency, self.machine
        units = latency.multiply + latency.accumulate + self.chains.depth * latency.alu + latency.write + latency.read
        return units + 2 * machine.edge


def _turns_of(workers: list[Worker]) -> int:
    return max(int(worker.steps.max(initial=-1)) + 1 for worker in workers)
