"""Programs that have to be right in every way: proved, in the cycles that were predicted, and bit by bit."""

from __future__ import annotations

import numpy as np

from weft.backends.reference.graph import run
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.programs import RandomProgram

TSP1 = streaming_machine("tsp1")


def check(given: RandomProgram, machine: StreamingMachine = TSP1) -> int:
    """Compile, verify and simulate a program; how many cycles it takes."""
    program = compile_graph(given.function, machine, given.constants)
    assert not violations(program)
    simulated = simulate(program, given.inputs)
    assert simulated.cycles == program.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)
    return program.cycles
