"""Where programs are cut so that memory is given back: near the least peak, in few segments."""

from __future__ import annotations

import random
import time
from itertools import accumulate

import pytest

from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, KernelStep, Plan
from weft.ops.layouts import contiguous
from weft.runtime.memory import choose_phases, cut_by_peak, cut_finely, cut_for_reuse, peak_of, plan_phases

MIB = 1 << 18
"""Elements of f32 that take as much."""


def planned(roles: dict[int, str], sizes: dict[int, int], steps: list[tuple[int, ...]]) -> Plan:
    """A plan of steps that touch buffers of so many MiB."""
    tensors = [Tensor(f32, (sizes[n] * MIB,)) for n in range(len(sizes))]
    buffers = tuple(Buffer(roles.get(n, "temporary"), each, contiguous(each)) for n, each in enumerate(tensors))
    inputs = tuple(n for n in range(len(sizes)) if roles.get(n) == "input")
    outputs = tuple(n for n in range(len(sizes)) if roles.get(n) == "output")
    made = tuple(KernelStep(f"k{n}", touched, (), 1, 1, False, "") for n, touched in enumerate(steps))
    return Plan("f", buffers, made, inputs, outputs, ())


def test_large_inputs_go_before_what_comes_after_them() -> None:
    """Logits and their gradient, then a padded copy of that, then small kernels, which stay together."""
    roles = {0: "input", 1: "input", 9: "output"}
    sizes = {0: 900, 1: 900, 2: 900, 3: 900, **dict.fromkeys(range(4, 10), 10)}
    steps = [(0, 1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9)]
    plan = planned(roles, sizes, steps)
    parts, phases = choose_phases(plan, {}, [plan.steps])
    assert peak_of(plan, {}, parts, phases).phased == 2700 << 20
    assert [len(part) for part in parts] == [1, 7]


def test_a_gradient_takes_the_memory_of_one_that_nobody_reads_any_more() -> None:
    """As in the backward of a convolution's norm: sums of two gradients, then the norm's, far below the peak."""
    roles = {0: "input", 1: "input", 2: "input", 6: "output", 7: "output"}
    sizes = {0: 900, 1: 196, 2: 196, 3: 196, 4: 1, 5: 1, 6: 196, 7: 1}
    steps = [(0, 4), (1, 2, 3), (3, 5), (3, 5, 6), (4, 5, 7), (3, 7)]
    plan = planned(roles, sizes, steps)
    parts = [plan.steps[:1], plan.steps[1:5], plan.steps[5:]]
    assert [len(part) for part in cut_for_reuse(plan, {}, parts)] == [1, 2, 2, 1]
    _, phases = choose_phases(plan, {}, parts)
    made = next(n for n, phase in enumerate(phases) if 6 in phase.makes)
    dropped = next(n for n, phase in enumerate(phases) if 1 in phase.drops)
    assert dropped < made


def test_large_temporaries_of_a_segment_are_blocks_of_their_own_where_they_would_share_none() -> None:
    """An allocator has blocks of 49 and 196 MiB that were given back, and none of both together."""
    roles = {0: "input", 4: "output"}
    sizes = {0: 49, 1: 49, 2: 196, 3: 1, 4: 1, 5: 1}
    plan = planned(roles, sizes, [(0, 1, 3), (1, 2, 3), (2, 5), (2, 5, 4)])
    (phase,) = plan_phases(plan, {}, [plan.steps])
    assert set(phase.makes) == {1, 2, 4} and {1, 2} <= set(phase.drops)
    assert phase.arena.size == 1 << 20 and set(phase.arena.offsets) == {3, 5}

    plan = planned(roles, {0: 49, 1: 49, 2: 196, 3: 49, 4: 1}, [(0, 1), (1, 2), (2, 3), (3, 4)])
    (phase,) = plan_phases(plan, {}, [plan.steps])
    assert set(phase.arena.offsets) == {1, 2, 3}, "the first and the last lie in one place"
    assert phase.arena.size == 245 << 20


def test_many_small_temporaries_lie_where_a_large_one_was() -> None:
    """A peak is not to rise above that of the arena of a whole program, for blocks that are at hand sooner."""
    sizes = {0: 1, 1: 100, 2: 31, 3: 31, 4: 31, 5: 31, 6: 1}
    plan = planned({0: "input", 6: "output"}, sizes, [(n, n + 1) for n in range(6)])
    phases = plan_phases(plan, {}, [plan.steps])
    peak = peak_of(plan, {}, [plan.steps], phases)
    assert peak.phased <= peak.whole
    assert set(phases[0].arena.offsets) == {1, 2, 3, 4, 5}


def test_small_buffers_and_those_of_another_size_are_no_reason_to_cut() -> None:
    roles = {0: "input", 1: "input", 4: "output", 5: "output"}
    sizes = {0: 100, 1: 20, 2: 1, 3: 1, 4: 90, 5: 20}
    plan = planned(roles, sizes, [(0, 1, 2), (2, 3), (3, 4, 5)])
    assert len(cut_for_reuse(plan, {}, [plan.steps])) == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_cut_near_the_least(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(6, 40)
    sizes = {n: rng.choice((1, 1, 4, 64, 300)) for n in range(count)}
    roles = {0: "input", 1: "input", count - 1: "output"}
    steps = [(*rng.sample(range(max(0, n - 6), n), min(n, 2)), n) for n in range(2, count)]
    plan = planned(roles, sizes, steps)
    whole = [plan.steps[:3], plan.steps[3:]]
    cut = cut_by_peak(plan, {}, whole)
    assert [step for part in cut for step in part] == list(plan.steps)
    assert 3 in accumulate(map(len, cut)), "a cut that was there is still"
    found, least = (
        peak_of(plan, {}, parts, plan_phases(plan, {}, parts)).phased for parts in (cut, cut_finely(whole, 1))
    )
    assert found <= least * 1.01


def test_long_programs_are_cut_in_little_time() -> None:
    """A chain behind one large step: every temporary of it would fit into what the large one leaves."""
    count = 2000
    roles = {0: "input", count - 1: "output"}
    sizes = {0: 3000, 1: 3000, **dict.fromkeys(range(2, count), 1)}
    plan = planned(roles, sizes, [(n - 1, n) for n in range(1, count)])
    start = time.process_time()
    assert len(cut_by_peak(plan, {}, [plan.steps])) < 10
    assert time.process_time() - start < 5
