"""A small linear program, by the simplex method over a dense tableau: who takes how much of what there is.

    least  cost·x + penalty·u   with   gives·x + u ≥ demand,   takes·x ≤ room,   x, u ≥ 0

Leaving all demand unserved (u) is a corner to begin at, so there is always an optimum. Pivots go by Bland's rule where
they do not gain, so that they end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.planner.errors import PlanError
from weft.planner.tables import Array

_ZERO = 1e-9


@dataclass(frozen=True)
class Optimum:
    """What is taken, what is left unserved, and what one more of each room would save."""

    values: Array
    unserved: Array
    worth: list[float]


def minimise(cost: Array, gives: Array, demand: Array, takes: Array, room: Array, penalty: Array) -> Optimum:
    """Solve it; demands, rooms and penalties are not negative, and finite as all the rest."""
    for given in (cost, gives, demand, takes, room, penalty):
        if not np.isfinite(given).all():
            raise PlanError("a linear program of numbers that are not finite")
    wanted, rooms, count = len(demand), len(room), len(cost)
    rows = wanted + rooms
    # Columns: what is taken, surplus of demand, what is not served, room that is left; and the right-hand side.
    width = count + 2 * wanted + rooms
    table = np.zeros((rows + 1, width + 1))
    table[:wanted, :count], table[wanted:rows, :count] = gives, takes
    table[:wanted, count : count + wanted] = -np.eye(wanted)
    table[:wanted, count + wanted : count + 2 * wanted] = np.eye(wanted)
    table[wanted:rows, count + 2 * wanted : width] = np.eye(rooms)
    table[:wanted, width], table[wanted:rows, width] = demand, room
    table[rows, :count], table[rows, count + wanted : count + 2 * wanted] = cost, penalty
    basis = [*range(count + wanted, count + 2 * wanted), *range(count + 2 * wanted, width)]
    for row, column in enumerate(basis):
        table[rows] -= table[rows, column] * table[row]
    gained = True
    while True:
        reduced = table[rows, :width]
        below = np.flatnonzero(reduced < -_ZERO * max(1.0, float(np.abs(cost).max(initial=1.0))))
        if not below.size:
            break
        column = int(below[np.argmin(reduced[below])]) if gained else int(below[0])
        ahead = np.flatnonzero(table[:rows, column] > _ZERO)
        if not ahead.size:
            raise PlanError("a linear program without an end: taking more always costs less", hint="costs are below 0")
        ratios = table[ahead, width] / table[ahead, column]
        least = float(ratios.min())
        row = min((int(each) for each in ahead[ratios <= least + _ZERO]), key=lambda each: basis[each])
        gained = least > _ZERO
        table[row] /= table[row, column]
        others = np.arange(rows + 1) != row
        table[others] -= np.outer(table[others, column], table[row])
        basis[row] = column
    solution = np.zeros(width)
    for row, column in enumerate(basis):
        solution[column] = max(0.0, float(table[row, width]))
    return Optimum(
        solution[:count],
        solution[count + wanted : count + 2 * wanted],
        [max(0.0, float(each)) for each in table[rows, count + 2 * wanted : width]],
    )
