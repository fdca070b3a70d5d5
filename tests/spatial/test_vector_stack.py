"""Products of single vectors stream their weights through all planes: five cycles a tile, and little more."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.spatial.isa import Function
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.mapping.layers import Job, Pass
from weft.spatial.program import Program
from weft.spatial.scheduler.compile import compile_graph, map_graph
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.scheduler.stack_shares import share_out
from weft.spatial.scheduler.vector_stack import free_row, is_vector_stack, schedule_vector_stack
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.mutants import MutantCount, count_mutants
from weft.testing.spatial.programs import RandomProgram, random_program, vector_stack

TSP1 = streaming_machine("tsp1")


def check(given: RandomProgram, machine: StreamingMachine) -> Program:
    program = schedule_vector_stack(map_graph(given.function, machine, given.constants), machine)
    assert program is not None
    assert not violations(program)
    simulated = simulate(program, given.inputs)
    assert simulated.cycles == program.cycles
    for result, expected in zip(simulated.results, run(given.function, given.arrays), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)
    return program


@pytest.mark.parametrize("factor", [0.5, 1, 2])
@pytest.mark.parametrize("widths", [(640, 640, 640), (1000, 700, 1), (1, 333, 64, 5)])
def test_a_stack_is_exact(widths: tuple[int, ...], factor: float) -> None:
    for residual, sums in ((True, False), (False, True)):
        check(vector_stack(widths, residual=residual, sums=sums), TSP1.scaled(factor))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_plane_may_have_more_blocks_than_rows(rows: int) -> None:
    check(vector_stack((1600, 1600, 6400)), streaming_machine("tsp1", {"matrix.accumulator_rows": rows}))


def test_open_blocks_have_rows_of_their_own() -> None:
    assert free_row(3, {0, 1}, 256) == 3
    assert free_row(0, {0}, 256) == 1, "the 257th of a plane, where the first is open and the second done"
    assert free_row(1, {0, 1, 3}, 4) == 2


@pytest.mark.parametrize(("blocks", "passes"), [(13, 35), (5, 4), (2, 7), (1, 1), (8, 3)])
def test_the_last_blocks_are_cut_so_that_planes_end_together(blocks: int, passes: int) -> None:
    jobs = [
        Job(block, np.zeros(1), np.zeros(1), tuple(Pass(block * passes + n, n, np.zeros(1)) for n in range(passes)))
        for block in range(blocks)
    ]
    loads = [100, 105, 110, 94]
    shares = share_out(jobs, loads, 21, cut=True)
    met = sorted(cast(int, each.tile) for share in shares for each in share.passes)
    assert met == list(range(blocks * passes))
    ends = [
        load + 21 * sum(len(each.passes) for each in shares if each.plane == plane) for plane, load in enumerate(loads)
    ]
    assert max(ends) <= -(-sum(ends) // 4) + 21
    for block in range(blocks):
        own = [each for each in shares if each.block == block]
        assert [each.number for each in own] == list(range(own[0].of)) == list(range(len(own)))
        assert len({each.plane for each in own}) == len(own)
    whole = share_out(jobs, loads, 21, cut=False)
    assert [each.of for each in whole] == [1] * blocks


@pytest.mark.parametrize("sums", [False, True])
def test_sums_of_a_block_on_several_planes_are_added(sums: bool) -> None:
    """Five blocks of six passes: three planes have a part of the last one, so that none has twelve."""
    program = check(vector_stack((1920, 1600), sums=sums), TSP1)
    added = program.instructions[program.instructions["function"] == Function.ADD_I32]
    assert added["count"].sum() == 2
    assert program.cycles < 21 * 8 + 130, "eight passes of a plane, and not twelve"


def test_tampered_stacks_are_caught() -> None:
    given, tally = vector_stack((700, 640, 640), residual=True), MutantCount()
    count_mutants(check(given, TSP1), given.inputs, run(given.function, given.arrays), 40, 3, tally)
    assert tally.harmful > 10 and not tally.missed.total()


def test_weights_are_read_in_little_more_than_the_cycles_they_need_at_least() -> None:
    given = vector_stack((3200, 3200, 3200))
    program = compile_graph(given.function, TSP1, given.constants)
    assert program.bounds["weights"] == 2 * 5 * 10 * 10
    assert program.cycles <= 1.3 * program.bounds["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(5120,) * 4, (8192,) * 3])
def test_a_large_stack_takes_at_most_a_tenth_more(widths: tuple[int, ...]) -> None:
    given = vector_stack(widths)
    program = compile_graph(given.function, TSP1, given.constants)
    check(given, TSP1)
    assert program.bounds["weights"] == (len(widths) - 1) * 5 * (-(-widths[0] // 320)) ** 2
    assert program.cycles <= 1.1 * program.bounds["weights"]


def test_weights_lie_in_memory_once() -> None:
    """Layer by layer the halves have copies, and what is too much for that still fits a stack."""
    small = streaming_machine("tsp1", {"memory.bank_words": 128})
    given = vector_stack((1280, 1280, 1280))
    assert compile_graph(given.function, small, given.constants).bounds["weights"] == 160
    with pytest.raises(
        CapacityError, match=r"7 tiles of a plane need 140 words of each of 16 slices, and there are 128"
    ):
        check(vector_stack((1920, 1920)), streaming_machine("tsp1", {"memory.bank_words": 64}))


@pytest.mark.parametrize("seed", [0, 5])
def test_more_than_single_vectors_are_no_stack(seed: int) -> None:
    given = random_program(seed)
    assert not is_vector_stack(map_graph(given.function, TSP1, given.constants), TSP1)


@pytest.mark.parametrize("planes", [2, 4])
def test_weights_that_are_slow_to_install_are_waited_for(planes: int) -> None:
    machine = streaming_machine("tsp1", {"latency.install_weights": 40, "matrix.planes": planes})
    check(vector_stack((700, 330, 50)), machine)
