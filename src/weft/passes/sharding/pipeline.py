"""Pipeline stages: where a program is cut, and in which order a stage runs the parts of its micro-batches.

Stages are cut by dynamic programming over the costs of ops, so that the slowest stage, with what it sends, is as fast
as it can be. Schedules are lists of steps for each rank; `check_schedule` runs them against what each step needs.
`stage_functions.py` makes the programs of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import ShardingError


@dataclass(frozen=True)
class Step:
    """A forward or backward of one micro-batch through one of the stages."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.stage}.{self.micro_batch}"


@dataclass(frozen=True)
class StageCut:
    """The stages of a program: of each the number of its first op, and its cost with what it sends."""

    starts: tuple[int, ...]
    costs: tuple[float, ...]

    @property
    def slowest(self) -> float:
        return max(self.costs)


def cut_stages(costs: Sequence[float], sending: Sequence[float], stages: int) -> StageCut:
    """Cut a row of ops into stages whose slowest is as fast as possible; `sending[n]` is the cost of a cut before op n.

    costs 4 1 1 2, two stages   →   4 | 1 1 2
    """
    count = len(costs)
    if not 1 <= stages <= count:
        raise ShardingError(f"{count} ops are not {stages} stages", hint="use at most as many stages as ops")
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)

    def of(start: int, end: int) -> float:
        return before[end] - before[start] + (sending[end] if end < count else 0.0)

    best = [[float("inf")] * (count + 1) for _ in range(stages + 1)]
    cut = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            for start in range(stage - 1, end):
                slowest = max(best[stage - 1][start], of(start, end))
                if slowest < best[stage][end]:
                    best[stage][end], cut[stage][end] = slowest, start
    starts: list[int] = []
    end = count
    for stage in range(stages, 0, -1):
        starts.insert(0, cut[stage][end])
        end = starts[0]
    ends = [*starts[1:], count]
    return StageCut(tuple(starts), tuple(of(start, end) for start, end in zip(starts, ends, strict=True)))


def one_forward_one_backward(stages: int, micro_batches: int) -> list[list[Step]]:
    """1F1B: a rank runs as many forwards as there are stages behind it, then a forward and a backward in turn.

    2 stages, 3 micro-batches   →   F0.0 F0.1 B0.0 F0.2 B0.1 B0.2   and   F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    """
    return interleaved(stages, micro_batches, 1)


def interleaved(ranks: int, micro_batches: int, chunks: int) -> list[list[Step]]:
    """1F1B where each rank has several stages, every `ranks`-th one: less waiting at the ends, more messages."""
    if ranks < 1 or micro_batches < 1 or chunks < 1:
        raise ShardingError(f"{ranks} ranks, {micro_batches} micro-batches and {chunks} chunks are no pipeline")
    if chunks > 1 and micro_batches % ranks:
        raise ShardingError(
            f"{micro_batches} micro-batches are not a multiple of {ranks} ranks",
            hint="interleaved stages take micro-batches in groups of as many as there are ranks",
        )
    total = micro_batches * chunks
    plans: list[list[Step]] = []
    for rank in range(ranks):
        forward = [_step("forward", number, rank, ranks, chunks) for number in range(total)]
        backward = [_step("backward", number, rank, ranks, chunks) for number in range(total)]
        ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        ahead = min(ahead, total)
        plan = forward[:ahead]
        for number in range(total - ahead):
            plan += [forward[ahead + number], backward[number]]
        plans.append(plan + backward[total - ahead :])
    return plans


def _step(kind: str, number: int, rank: int, ranks: int, chunks: int) -> Step:
    """The number-th forward, or backward, of a rank: groups of `ranks` micro-batches go through its chunks in turn."""
    if chunks == 1:
        return Step(kind, rank, number)
    group, rest = divmod(number, ranks * chunks)
    chunk, place = divmod(rest, ranks)
    chunk = chunk if kind == "forward" else chunks - 1 - chunk
    return Step(kind, chunk * ranks + rank, group * ranks + place)


def check_schedule(plans: Sequence[Sequence[Step]]) -> int:
    """Run a schedule whose steps all take one tick; gives the number of ticks, or says who waits for whom."""
    last = max(step.stage for plan in plans for step in plan)
    done: set[Step] = set()
    places, ticks = [0] * len(plans), 0
    while any(place < len(plan) for place, plan in zip(places, plans, strict=True)):
        ready = [
            rank
            for rank, plan in enumerate(plans)
            if places[rank] < len(plan) and _needed(plan[places[rank]], last) <= done
        ]
        if not ready:
            waits = ", ".join(str(plan[place]) for place, plan in zip(places, plans, strict=True) if place < len(plan))
            raise ShardingError(f"the stages wait for each other at {waits}")
        done |= {plans[rank][places[rank]] for rank in ready}
        for rank in ready:
            places[rank] += 1
        ticks += 1
    return ticks


def _needed(step: Step, last: int) -> set[Step]:
    if step.kind == "forward":
        return {Step("forward", step.stage - 1, step.micro_batch)} if step.stage else set()
    needed = {Step("forward", step.stage, step.micro_batch)}
    return needed | ({Step("backward", step.stage + 1, step.micro_batch)} if step.stage < last else set())
