"""A solver finds starts of layers that are as good as any, and says so."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.compile import map_streams, optimize_streams
from weft.spatial.scheduler.optimum import Movable, best_starts
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.programs import random_program

TSP1 = streaming_machine("tsp1")


def test_without_the_solver_the_search_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(UnsupportedError, match="OR-Tools") as caught:
        best_starts([Movable({0: (0, 9)}, frozenset(), 0, 12)], [0], 1)
    assert "weft[solver]" in str(caught.value.hint)


@pytest.mark.parametrize("seed", [5, 13])
def test_a_schedule_with_the_best_starts_is_exact(seed: int) -> None:
    pytest.importorskip("ortools", reason="the extra `solver` is not installed")
    given = random_program(seed)
    program, best = optimize_streams(map_streams(given.function, TSP1, given.constants), TSP1, 20)
    assert not violations(program)
    assert best.proved and best.bound == best.found == program.cycles <= best.given
    simulated = simulate(program, given.inputs)
    assert simulated.cycles == program.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)


def test_layers_that_do_not_need_each_other_change_places() -> None:
    """The first makes what the last needs: in the order of the graph it waits for the long one between them."""
    pytest.importorskip("ortools", reason="the extra `solver` is not installed")
    long = Movable({1: (0, 99)}, frozenset(), 0, 100)
    short = Movable({1: (0, 9), 2: (0, 9)}, frozenset({2}), 0, 10)
    after = Movable({2: (0, 49)}, frozenset(), 0, 50)
    found = best_starts([long, short, after], [0, 100, 110], 10)
    assert (found.given, found.found, found.bound, found.proved) == (160, 110, 110, True)
    assert list(found.starts) == [10, 0, 10]
    kept = [Movable(each.spans, each.ordered | {1}, 0, each.end) for each in (long, short)]
    assert best_starts([*kept, after], [0, 100, 110], 10).found == 160
