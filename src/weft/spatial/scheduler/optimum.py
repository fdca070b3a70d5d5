"""Searches for the best starts of layers with a solver (CP-SAT of OR-Tools), and bounds what any starts could reach.

The scheduler starts each layer as early as what it uses allows, in the order of the graph. Here a layer stays as it is,
and its start is a variable: what two layers use is not used by both at once, and banks that are written keep the order
of the graph, so that a tensor is read when it is written, and before its words are used again. Layers are solved in
blocks, one after another, from the starts that the scheduler gave; it is a check of the scheduler, and not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

from weft.errors import UnsupportedError

BLOCK = 12
"""Layers that are solved at once."""


@dataclass(frozen=True)
class Movable:
    """A layer, in cycles of its own: all that its start has to do with that of others."""

    spans: Mapping[int, tuple[int, int]]
    """The first and the last use of each resource."""
    ordered: frozenset[int]
    """Those of them that are used in the order of the graph."""
    begin: int
    end: int


@dataclass(frozen=True)
class Optimum:
    """Starts of layers, and for the last cycle what the scheduler reached, what was found and what cannot be beaten."""

    starts: Sequence[int]
    given: int
    found: int
    bound: int
    """No starts of the last block's layers end earlier, those before it being as they are."""
    proved: bool
    """Whether every block was solved to its optimum."""


def best_starts(layers: Sequence[Movable], starts: Sequence[int], seconds: float) -> Optimum:
    """Move layers so that the last ends as early as can be found in so many seconds."""
    solver = _solver()
    best, proved, bound = list(starts), True, 0
    given = max(start + layer.end for layer, start in zip(layers, starts, strict=True))
    count = -(-len(layers) // BLOCK)
    for first in range(0, len(layers), BLOCK):
        block = range(first, min(first + BLOCK, len(layers)))
        bound, done = _solve(solver, layers, best, block, seconds / count)
        proved = proved and done
    found = max(start + layer.end for layer, start in zip(layers, best, strict=True))
    return Optimum(best, given, found, bound, proved)


def _solver() -> Any:
    try:
        return import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise UnsupportedError(
            "the search for the best starts needs OR-Tools, which is not installed",
            hint="install the extra: pip install 'weft[solver]'",
        ) from error


def _solve(cp_model: Any, layers: Sequence[Movable], best: list[int], block: range, seconds: float) -> tuple[int, bool]:
    """The starts of a block's layers, those before it being as they are; the bound, and whether it is reached."""
    model = cp_model.CpModel()
    begin = min(start + layer.begin for layer, start in zip(layers, best, strict=True))
    high = max(start + layer.end for layer, start in zip(layers, best, strict=True))
    starts = {number: model.NewIntVar(begin - layers[number].begin, high, f"start{number}") for number in block}
    held: dict[int, int] = {}
    for number in range(block.stop):
        layer, own = layers[number], starts.get(number)
        if own is None:
            for key, (_, last) in layer.spans.items():
                held[key] = max(held.get(key, -(1 << 40)), best[number] + last + 1)
        else:
            for key, (first, _) in layer.spans.items():
                if key in held:
                    model.Add(own + first >= held[key])
    for users, both_ways in _conflicts(layers, block):
        if both_ways:
            model.AddNoOverlap(
                [model.NewFixedSizeIntervalVar(starts[n] + first, last + 1 - first, "") for n, first, last in users]
            )
        else:
            for (one, _, last), (other, first, _) in pairwise(users):
                model.Add(starts[other] + first >= starts[one] + last + 1)
    end = model.NewIntVar(begin, high, "end")
    for number, start in starts.items():
        model.Add(end >= start + layers[number].end)
        model.AddHint(start, best[number])
    # The last end first, and of equals all others as early as can be: the next block stands on them.
    least = sum(begin - layers[number].begin for number in block)
    weight = len(starts) * high - least + 1
    model.Minimize(end * weight + sum(starts.values()) - least)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.Solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        for number, start in starts.items():
            best[number] = int(solver.Value(start))
    return int(solver.BestObjectiveBound() // weight), status == cp_model.OPTIMAL


def _conflicts(layers: Sequence[Movable], block: range) -> list[tuple[list[tuple[int, int, int]], bool]]:
    """For resources that several layers of a block use: who does from when to when; those alike once."""
    users: dict[int, list[tuple[int, int, int]]] = {}
    ordered: set[int] = set()
    for number in block:
        ordered |= layers[number].ordered
        for key, (first, last) in layers[number].spans.items():
            users.setdefault(key, []).append((number, first, last))
    found = {(tuple(those), key not in ordered) for key, those in users.items() if len(those) > 1}
    return [(list(those), free) for those, free in sorted(found)]
