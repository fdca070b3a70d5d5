"""Pipeline stages are cut where the slowest is fastest, and schedules never wait for what comes later."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from weft.errors import ShardingError
from weft.passes.sharding.pipeline import check_schedule, cut_stages, interleaved, one_forward_one_backward


def slowest(costs: list[float], sending: list[float], starts: tuple[int, ...]) -> float:
    ends = [*starts[1:], len(costs)]
    sends = [sending[end] if end < len(costs) else 0 for end in ends]
    return max(sum(costs[a:b]) + sent for a, b, sent in zip(starts, ends, sends, strict=True))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_no_other_cut_is_faster(stages: int) -> None:
    rng = np.random.default_rng(stages)
    costs, sending = list(rng.integers(1, 9, 9).astype(float)), list(rng.integers(0, 4, 10).astype(float))
    found = cut_stages(costs, sending, stages)
    every = [(0, *cuts) for cuts in combinations(range(1, 9), stages - 1)]
    assert found.slowest == min(slowest(costs, sending, starts) for starts in every)
    assert found.slowest == slowest(costs, sending, found.starts)


def test_more_stages_than_ops_are_refused() -> None:
    with pytest.raises(ShardingError, match="2 ops are not 3 stages"):
        cut_stages([1, 1], [0, 0, 0], 3)


def test_one_forward_one_backward() -> None:
    first, second = one_forward_one_backward(2, 3)
    assert " ".join(map(str, first)) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"
    assert " ".join(map(str, second)) == "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (2, 2), (4, 8), (4, 3), (8, 16)])
def test_a_schedule_takes_no_longer_than_it_must(ranks: int, micro_batches: int) -> None:
    plans = one_forward_one_backward(ranks, micro_batches)
    assert all(len(set(plan)) == 2 * micro_batches for plan in plans)
    assert check_schedule(plans) == 2 * (micro_batches + ranks - 1)


def test_at_most_as_many_micro_batches_are_held_as_there_are_stages() -> None:
    for rank, plan in enumerate(one_forward_one_backward(4, 16)):
        held = most = 0
        for step in plan:
            held += 1 if step.kind == "forward" else -1
            most = max(most, held)
        assert most == 4 - rank


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 16, 4)])
def test_interleaved_stages_wait_less(ranks: int, micro_batches: int, chunks: int) -> None:
    plans = interleaved(ranks, micro_batches, chunks)
    assert all(len(set(plan)) == 2 * micro_batches * chunks for plan in plans)
    # A step of a chunk is that part of a step of a whole stage.
    assert check_schedule(plans) / chunks < 2 * (micro_batches + ranks - 1)


def test_micro_batches_of_interleaved_stages_come_in_groups() -> None:
    with pytest.raises(ShardingError, match="6 micro-batches are not a multiple of 4"):
        interleaved(4, 6, 2)
