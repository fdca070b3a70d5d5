"""Reductions in the simulator: what a thread combines by itself, with lanes of its warp, and with other warps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.backends.nvidia.layouts import WARP, Layout
from weft.backends.nvidia.simulator_layouts import digits, reduced_registers
from weft.backends.nvidia.simulator_memory import SharedMemory
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
    threads = np.arange(layout.threads)
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
    threads = np.arange(layout.threads)
    registers = pairs.values.shape[1]
    parts = [(pairs.values, dtype)]
    if pairs.combiner.indexed:
        parts.append((pairs.positions, np.dtype(np.int64)))
    rows: list[list[int]] = []
    for register in range(registers):
        rows.append([])
        for array, type_ in parts:
            starts = start + type_.itemsize * threads
            shared.write(op, threads, starts, array[:, register].astype(type_), pairs.defined[:, register])
            rows[-1].append(start)
            start += type_.itemsize * layout.threads
    barrier()
    others = _warps_along(layout, axis)
    found: list[Pairs] = []
    for warps in others:
        columns = [np.zeros_like(pairs.values), pairs.positions.copy()]
        defined = np.ones(pairs.defined.shape, bool)
        from_threads = warps[threads // WARP] * WARP + threads % WARP
        for register, row in enumerate(rows):
            for number, (place, (_, type_)) in enumerate(zip(row, parts, strict=True)):
                values, known = shared.read(op, threads, place + type_.itemsize * from_threads, type_)
                columns[number][:, register] = values.astype(columns[number].dtype)
                defined[:, register] &= known
        found.append(Pairs(pairs.combiner, columns[0], columns[1], defined))
    return _joined(found)


def _warps_along(layout: Layout, axis: int) -> list[np.ndarray]:
    """For each step along an axis, the warp that takes it and is otherwise at a warp's place, for each warp."""
    numbers = np.arange(layout.warp_count)
    steps = [range(mode.size) if mode.axis == axis else [None] for mode in layout.warps]
    result: list[np.ndarray] = []
    for chosen in product(*steps):
        warp, unit = np.zeros_like(numbers), 1
        for mode, digit, step in zip(layout.warps, digits(numbers, layout.warps), chosen, strict=True):
            warp += unit * (digit if step is None else step)
            unit *= mode.size
        result.append(warp)
    return result
