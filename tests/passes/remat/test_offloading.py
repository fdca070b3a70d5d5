"""When copies to the host's memory begin and end, and what is worth one."""

from __future__ import annotations

import random

import pytest

from weft.passes.remat.minimum_cut import choices
from weft.passes.remat.offload_choice import LEAST_BYTES, Machine, offloading, quickest_within
from weft.passes.remat.recompute_problem import RecomputeProblem, Value
from weft.passes.remat.transfer_schedule import CopyBack, CopyOut, starts_of_copies_back, waits_for_copies_out

MIB = 1 << 20


def test_a_copy_out_is_awaited_when_it_should_have_ended() -> None:
    steps = [1.0] * 8
    assert waits_for_copies_out(steps, [CopyOut(0, 0, 2.5)]) == [3]
    assert waits_for_copies_out(steps, [CopyOut(0, 5, 2.5)]) == [5], "until then it is read anyway"
    assert waits_for_copies_out(steps, [CopyOut(1, 1, 2.0), CopyOut(0, 0, 3.0)]) == [5, 3], "one after the other"
    assert waits_for_copies_out(steps, [CopyOut(6, 6, 99.0)]) == [7], "at the latest at the end"


def test_a_copy_back_begins_as_late_as_it_can() -> None:
    steps = [1.0] * 8
    assert starts_of_copies_back(steps, [CopyBack(6, 2.0)]) == [4]
    assert starts_of_copies_back(steps, [CopyBack(6, 2.0), CopyBack(5, 2.0)]) == [4, 2]
    assert starts_of_copies_back(steps, [CopyBack(6, 2.0), CopyBack(6, 2.0)]) in ([2, 4], [4, 2])
    assert starts_of_copies_back(steps, [CopyBack(1, 9.0)]) == [0]


def test_copies_never_begin_before_or_end_after_what_they_need() -> None:
    rng = random.Random(0)
    for _ in range(200):
        steps = [rng.choice([0.0, rng.random()]) for _ in range(rng.randint(1, 12))]
        made = [rng.randrange(len(steps)) for _ in range(rng.randint(0, 6))]
        out = [CopyOut(m, rng.randrange(m, len(steps)), 2 * rng.random()) for m in made]
        for copy, wait in zip(out, waits_for_copies_out(steps, out), strict=True):
            assert copy.last <= wait < len(steps)
        back = [CopyBack(rng.randrange(len(steps)), 2 * rng.random()) for _ in made]
        for copy, start in zip(back, starts_of_copies_back(steps, back), strict=True):
            assert 0 <= start <= copy.first


def chain(layers: int, work: int) -> RecomputeProblem:
    """Layers one after the other, of 64 MiB each, all of which the backward reads."""
    argument = Value(0, 0, (), True, can_be_computed_again=False)
    values = [Value(64 * MIB, work, (number,), True) for number in range(layers)]
    reads = tuple((number,) for number in range(layers, 0, -1))
    return RecomputeProblem((argument, *values), reads, layers + 1)


MACHINE = Machine(bandwidth=1e12, host_bandwidth=50e9)


@pytest.mark.parametrize(("work", "copies"), [(1 << 26, False), (1 << 36, True)])
def test_what_takes_long_to_compute_is_offloaded_and_the_rest_computed_again(work: int, copies: bool) -> None:
    problem = chain(16, work)
    movable = range(1, 17)
    found = quickest_within(problem, choices(problem), movable, 512 * MIB, MACHINE)
    assert found is not None and found.bytes <= 512 * MIB
    assert bool(found.offloaded) == copies
    assert found.offloaded <= found.choice.kept
    if copies:
        assert found.offloaded == frozenset(range(1, 9)), "the first layers, which are read last"


def test_no_more_is_offloaded_than_the_limit_asks_for() -> None:
    problem = chain(16, 1 << 36)
    everything = problem.completed(range(17))
    found = offloading(problem, everything, range(1, 17), 1000 * MIB, MACHINE)
    assert len(found.offloaded) == 1 and found.bytes == 960 * MIB
    assert not offloading(problem, everything, range(1, 17), 2000 * MIB, MACHINE).offloaded
    nothing = offloading(problem, everything, (), 0, MACHINE)
    assert nothing.bytes == 1024 * MIB and not nothing.offloaded


def test_small_values_are_not_worth_a_copy() -> None:
    problem = RecomputeProblem((Value(0, 0, (), True), Value(LEAST_BYTES - 1, 1, (0,), True)), ((1,),), 2)
    assert not offloading(problem, problem.completed((0, 1)), (1,), 0, MACHINE).offloaded
