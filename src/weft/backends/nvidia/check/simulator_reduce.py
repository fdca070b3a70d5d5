"""Reductions in the simulator: what a thread combines by itself, with lanes of its warp, and with other warps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from weft.backends.nvidia.check.simulator_layouts import digits, reduced_registers
from weft.backends.nvidia.check.simulator_memory import SharedMemory
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode
from weft.tile.functions import FUNCTIONS, Combiner


@dataclass(frozen=True, eq=False)
class Pairs:
    """Values, arrays [threads, registers], with their positions along the axis (-1: none), and which are defined."""

    combiner: Combiner
    values: np.ndarray
    positions: np.ndarray
    defined: np.ndarray

    def at(self, pick: Callable[[np.ndarray], np.ndarray]) -> Pairs:
        """The pairs of other threads or registers."""
        return Pairs(self.combiner, pick(self.values), pick(self.positions), pick(self.defined))

    def join(self, other: Pairs) -> Pairs:
        """Combine register by register."""
        defined = self.defined & other.defined
        if not self.combiner.indexed:
            joined = FUNCTIONS[self.combiner.function].numpy(self.values, other.values)
            return Pairs(self.combiner, joined.astype(self.values.dtype), self.positions, defined)
        wins = _comes_first(self.combiner.name, other, self)
        values, positions = (
            np.where(wins, theirs, own)
            for own, theirs in ((self.values, other.values), (self.positions, other.positions))
        )
        return Pairs(self.combiner, values, positions, defined)


def _comes_first(name: str, a: Pairs, b: Pairs) -> np.ndarray:
    """Whether a's element is the one that is sought rather than b's: NaN, then the extremum, then the first."""
    x, y = a.values, b.values
    nan_x, nan_y = x != x, y != y
    better = (x > y if name == "argmax" else x < y) & ~nan_y
    better |= nan_x & ~nan_y
    same = (x == y) | (nan_x & nan_y)
    better |= same & (a.positions < b.positions)
    return (a.positions >= 0) & (better | (b.positions < 0))


def _joined(pairs: Sequence[Pairs]) -> Pairs:
    """Neighbours first: sums of many terms keep their digits."""
    while len(pairs) > 1:
        halves = [a.join(b) for a, b in zip(pairs[::2], pairs[1::2], strict=False)]
        pairs = [*halves, *pairs[2 * len(halves) :]]
    return pairs[0]


def combine_registers(pairs: Pairs, layout: Layout, result: Layout, axis: int) -> Pairs:
    """Each thread combines what it has along an axis."""
    into = np.asarray(reduced_registers(layout, result, axis))
    groups = [np.flatnonzero(into == number) for number in range(result.count)]
    found = [_joined([pairs.at(lambda a, r=r: a[:, r]) for r in group]) for group in groups]
    return Pairs(
        pairs.combiner,
        np.stack([each.values for each in found], 1),
        np.stack([each.positions for each in found], 1),
        np.stack([each.defined for each in found], 1),
    )


def combine_lanes(pairs: Pairs, layout: Layout, axis: int) -> Pairs:
    """Lanes exchange with those whose number differs in a bit that runs along the axis."""
    threads = np.arange(layout.threads * layout.block_count)
    bit = 1
    for mode in layout.lanes:
        for step in range(mode.size.bit_length() - 1):
            if mode.axis == axis:
                others = threads ^ (bit << step)
                pairs = pairs.join(pairs.at(lambda a, others=others: a[others]))
        bit *= mode.size
    return pairs


def combine_warps(
    pairs: Pairs,
    layout: Layout,
    axis: int,
    shared: SharedMemory,
    barrier: Callable[[], None],
    op: int,
    start: int,
    dtype: np.dtype,
) -> Pairs:
    """Every thread writes what it has, for each register a row of all threads; each reads the warps along the axis."""
    threads = np.arange(layout.threads * layout.block_count)
    rows = _write_rows(pairs, layout, shared, op, start, dtype)
    barrier()
    found: list[Pairs] = []
    for warps in _along(layout.warps, axis):
        sources = warps[threads // WARP % layout.warp_count] * WARP + threads % WARP
        found.append(_read_rows(pairs, shared, op, rows, sources, threads // layout.threads))
    return _joined(found)


def combine_blocks(
    pairs: Pairs,
    layout: Layout,
    axis: int,
    shared: SharedMemory,
    barrier: Callable[..., None],
    op: int,
    start: int,
    dtype: np.dtype,
) -> Pairs:
    """Every thread reads what its like in the other blocks wrote; what warps exchanged may lie in the same place.

    All of the cluster wait for each other until all is written, and again until all is read.
    """
    threads = np.arange(layout.threads * layout.block_count)
    if any(mode.axis == axis for mode in layout.warps):
        barrier()
    rows = _write_rows(pairs, layout, shared, op, start, dtype)
    barrier(of_cluster=True)
    found: list[Pairs] = []
    for blocks in _along(layout.blocks, axis):
        sources = blocks[threads // layout.threads]
        found.append(_read_rows(pairs, shared, op, rows, threads % layout.threads, sources))
    barrier(of_cluster=True)
    return _joined(found)


Rows: TypeAlias = list[list[tuple[int, np.dtype]]]
"""For each register, where the rows of its parts begin, and their types."""


def _write_rows(pairs: Pairs, layout: Layout, shared: SharedMemory, op: int, start: int, dtype: np.dtype) -> Rows:
    threads = np.arange(layout.threads * layout.block_count)
    parts = [(pairs.values, dtype)]
    if pairs.combiner.indexed:
        parts.append((pairs.positions, np.dtype(np.int64)))
    rows: Rows = []
    for register in range(pairs.values.shape[1]):
        rows.append([])
        for array, type_ in parts:
            starts = start + type_.itemsize * (threads % layout.threads)
            shared.write(op, threads, starts, array[:, register].astype(type_), pairs.defined[:, register])
            rows[-1].append((start, type_))
            start += type_.itemsize * layout.threads
    return rows


def _read_rows(
    pairs: Pairs, shared: SharedMemory, op: int, rows: Rows, sources: np.ndarray, blocks: np.ndarray
) -> Pairs:
    """What other threads wrote: their numbers in a block, and the block's in the cluster."""
    threads = np.arange(sources.size)
    columns = [np.zeros_like(pairs.values), pairs.positions.copy()]
    defined = np.ones(pairs.defined.shape, bool)
    for register, row in enumerate(rows):
        for number, (place, type_) in enumerate(row):
            values, known = shared.read(op, threads, place + type_.itemsize * sources, type_, blocks)
            columns[number][:, register] = values.astype(columns[number].dtype)
            defined[:, register] &= known
    return Pairs(pairs.combiner, columns[0], columns[1], defined)


def _along(modes: Sequence[Mode], axis: int) -> list[np.ndarray]:
    """For each step along an axis, the warp (or block) that takes it and is otherwise at the place of each."""
    numbers = np.arange(prod(mode.size for mode in modes))
    steps = [range(mode.size) if mode.axis == axis else [None] for mode in modes]
    result: list[np.ndarray] = []
    for chosen in product(*steps):
        place, unit = np.zeros_like(numbers), 1
        for mode, digit, step in zip(modes, digits(numbers, modes), chosen, strict=True):
            place += unit * (digit if step is None else step)
            unit *= mode.size
        result.append(place)
    return result
