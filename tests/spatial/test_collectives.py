"""Collectives among chips: as many cycles as their links need and little more, and the sum of all chips' bits."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.simulator.system import simulate_system
from weft.spatial.verifier.verify import system_violations
from weft.testing.spatial.collectives import all_reduce

TSP1 = streaming_machine("tsp1")


@pytest.mark.parametrize(("chips", "size", "most"), [(8, 16384, 1050), (2, 320, 750), (3, 1000, 800)])
def test_an_all_reduce_is_two_exchanges_and_a_sum(chips: int, size: int, most: int) -> None:
    given = all_reduce(chips, size, TSP1.width)
    everyone = dict.fromkeys(range(chips), range(chips))
    made = place_model(map_placed(given.function, TSP1, given.constants), TSP1, chips, to=everyone)
    system = placed_system(made)
    assert not system_violations(system)
    assert len(made.rounds) == 2
    cycles = made.rounds[-1].end - made.rounds[0].begin
    vectors = -(-size // (chips * TSP1.width))
    least = 2 * TSP1.links.latency_mean + int(TSP1.vector_link_cycles * (vectors + 1))
    assert least <= cycles <= most
    simulated = simulate_system(system, given.inputs)
    assert simulated.cycles == system.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)
