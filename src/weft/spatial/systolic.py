"""Products on a weight-stationary systolic array: a schedule of folds, and a machine that runs it register by register.

A fold is a tile of weights: its rows are shifted in one a cycle, then the vectors enter, each row of the array a cycle
after the one above, and the sums leave at the bottom, each column a cycle after the one before. Folds do not overlap.
SCALE-Sim v3 counts the same cycles and reports the number of the last one, counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.spatial.machine import SystolicMachine


@dataclass(frozen=True)
class Fold:
    """A tile of weights and the vectors that pass it. All cycles are those of the whole schedule."""

    row: int
    column: int
    """The first weight of the tile, in K and in N."""
    load: np.ndarray
    """When each row of weights enters."""
    enter: np.ndarray
    """When each vector enters the first row."""

    def leaves(self, rows: int, columns: int) -> np.ndarray:
        """When the sum of each vector leaves each column."""
        return self.enter[:, None] + (rows - 1) + np.arange(columns)[None, :]


@dataclass(frozen=True)
class SystolicSchedule:
    """All folds of a product [M, K] by [K, N]."""

    machine: SystolicMachine
    folds: tuple[Fold, ...]

    @property
    def last_cycle(self) -> int:
        """The last cycle in which anything happens, counted from 0: SCALE-Sim's "Total Cycles"."""
        array = self.machine.array
        return max(int(fold.leaves(array.rows, array.columns).max()) for fold in self.folds)


def schedule_product(machine: SystolicMachine, m: int, k: int, n: int) -> SystolicSchedule:
    """One fold after another: the next one's weights enter when the last sum of this one has left."""
    rows, columns = machine.array.rows, machine.array.columns
    folds: list[Fold] = []
    start = 0
    for column in range(0, n, columns):
        for row in range(0, k, rows):
            load = start + np.arange(rows)
            fold = Fold(row, column, load, load[-1] + 1 + np.arange(m))
            folds.append(fold)
            start = int(fold.leaves(rows, columns).max()) + 1
    return SystolicSchedule(machine, tuple(folds))


def run_product(schedule: SystolicSchedule, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
    """Run a schedule cycle by cycle: the product, and the number of the last cycle in which a sum left."""
    rows, columns = schedule.machine.array.rows, schedule.machine.array.columns
    result = np.zeros((x.shape[0], w.shape[1]), np.int64)
    last = -1
    for fold in schedule.folds:
        tile = np.zeros((rows, columns), np.int64)
        part = w[fold.row : fold.row + rows, fold.column : fold.column + columns]
        tile[: part.shape[0], : part.shape[1]] = part
        weights = np.zeros_like(tile)
        moving, sums = np.zeros_like(tile), np.zeros_like(tile)
        enters = {int(cycle): vector for vector, cycle in enumerate(fold.enter)}
        loads = {int(cycle): number for number, cycle in enumerate(fold.load)}
        end = int(fold.leaves(rows, columns).max())
        for cycle in range(int(fold.load[0]), end + 1):
            if cycle in loads:  # the last row of weights is the first to enter
                weights = np.vstack([tile[rows - 1 - loads[cycle]], weights[:-1]])
            arriving = np.zeros(rows, np.int64)
            for row in range(min(rows, x.shape[1] - fold.row)):
                vector = enters.get(cycle - row)
                if vector is not None:
                    arriving[row] = x[vector, fold.row + row]
            moving = np.hstack([arriving[:, None], moving[:, :-1]])
            sums = np.vstack([np.zeros((1, columns), np.int64), sums[:-1]]) + moving * weights
            for column in range(columns):
                vector = enters.get(cycle - (rows - 1) - column)
                if vector is not None:
                    last = max(last, cycle)
                    if fold.column + column < w.shape[1]:
                        result[vector, fold.column + column] += sums[-1, column]
    return result, last
