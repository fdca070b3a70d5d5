"""An iteration-level simulation of one replica: the scheduler's steps, each as long as its costs say.

Runs of the same decoding step are taken at once, so that a simulated iteration costs what changes in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.planner.attention_costs import LENGTHS
from weft.planner.op_costs import ROWS
from weft.planner.scheduler import Limits, Request, State, Step, complete, schedule
from weft.planner.step_costs import StepCosts, surface
from weft.planner.tables import Array

_LENGTHS: list[float] = LENGTHS.tolist()


class StepTimer:
    """Times of steps from lookups of whole numbers: what the simulator asks for hundreds of thousands of times."""

    def __init__(self, costs: StepCosts, tokens: int = 16384, sequences: int = 2048, *, drafted: int = 0) -> None:
        rows = np.arange(tokens + 1, dtype=float)
        per = np.maximum(rows / costs.stages, 1.0)
        local = np.maximum(per * costs.share, 1.0)
        self.rows: list[float] = (np.interp(local, ROWS, costs.tokens) + np.interp(per, ROWS, costs.experts)).tolist()
        self.given: list[float] = np.interp(local, ROWS, costs.sequences).tolist()
        self.decode: list[float] = np.interp(local, ROWS, costs.decode).tolist()
        self.prefill: list[float] = np.interp(local, ROWS, costs.prefill).tolist()
        batch = np.maximum(np.arange(sequences + 1, dtype=float) / costs.stages * costs.share, 1.0)
        grid = surface(costs.decode_attention, batch[:, None], LENGTHS[None, :])
        self.attention: list[list[float]] = grid.tolist()
        self.prompts: list[float] = costs.prefill_attention.tolist()
        self.prompt_least = self.prompts[0]
        self.share = costs.share / costs.stages
        self.width = drafted + 1
        self.limit = tokens
        self.most = sequences

    def _along(self, values: list[float], length: float) -> float:
        j = bisect_right(_LENGTHS, length) - 1
        j = min(max(j, 0), len(_LENGTHS) - 2)
        low = _LENGTHS[j]
        return values[j] + (values[j + 1] - values[j]) * (length - low) / (_LENGTHS[j + 1] - low)

    def seconds(self, step: Step, ahead: float = 0.0) -> float:
        """A step's time; `ahead` moves its context on by so many tokens a sequence."""
        decoding = step.decoding
        new = 0
        total = 0.0
        last = 0
        for chunk in step.chunks:
            new += chunk.new
            last += chunk.last
            spent = self._along(self.prompts, chunk.prefix + chunk.new)
            if chunk.prefix:
                spent = max(spent - self._along(self.prompts, chunk.prefix), 0.0) + self.prompt_least
            total += spent - self.prompt_least
        if step.chunks:
            total = total * self.share + self.prompt_least + self.prefill[min(new, self.limit)]
        rows = decoding * self.width
        total += self.rows[min(new + rows, self.limit)] + self.given[min(rows + last, self.limit)]
        if decoding:
            context = step.context / decoding + ahead
            total += self.decode[min(rows, self.limit)] + self._along(self.attention[min(decoding, self.most)], context)
        return total


@dataclass
class Outcome:
    """What each request saw, in seconds, in the order of their ends."""

    ttft: Array
    tpot: Array
    e2e: Array
    arrival: Array
    output: Array
    makespan: float
    iterations: int
    busy: float
    preemptions: int
    largest: int
    mean_decoding: float = 0.0

    @property
    def output_rate(self) -> float:
        """Output tokens a second over the whole run."""
        return float(self.output.sum()) / self.makespan if self.makespan else 0.0


@dataclass
class _Clock:
    now: float = 0.0
    busy: float = 0.0
    iterations: int = 0
    largest: int = 0
    decoded: float = 0.0
    started: dict[int, float] = field(default_factory=dict[int, float])
    first: dict[int, float] = field(default_factory=dict[int, float])


def simulate(
    timer: StepTimer,
    limits: Limits,
    requests: Sequence[Request],
    arrivals: Sequence[float] | None = None,
    *,
    concurrency: int = 0,
) -> Outcome:
    """Serve all requests: at their arrivals, in order, or in a closed loop of so many clients that never think."""
    state, clock = State(limits), _Clock()
    upcoming = 0
    batch: list[Request] = []
    loop = arrivals is None
    times: list[float] = [0.0] * len(requests) if arrivals is None else [float(each) for each in arrivals]
    if loop:
        upcoming = min(concurrency, len(requests))
        batch = list(requests[:upcoming])
        clock.started = {each.number: 0.0 for each in batch}
    # An engine has chosen its next step before a client knows of the last one's end: what he sends misses that step.
    sent: list[Request] = []
    ended: list[tuple[Request, float]] = []
    total = len(requests)
    per_tick = limits.per_tick
    while len(ended) < total:
        if not loop:
            while upcoming < total and times[upcoming] <= clock.now:
                batch.append(requests[upcoming])
                clock.started[requests[upcoming].number] = times[upcoming]
                upcoming += 1
        step = schedule(state, batch)
        if batch:
            batch = []
        if not step.decoding and not step.chunks:
            if sent:
                batch, sent = sent, []
                continue
            if loop or upcoming >= total:
                break
            clock.now = max(clock.now, times[upcoming])
            continue
        repeat = 1 if sent else step.repeat
        seconds = timer.seconds(step)
        if repeat > 1:
            # Contexts grow by a token a tick: times are close to linear in it, so the middle stands for all.
            middle = timer.seconds(step, (repeat - 1) * per_tick / 2)
            if not loop and upcoming < total and clock.now + repeat * middle > times[upcoming]:
                repeat = max(1, min(repeat, int((times[upcoming] - clock.now) / max(seconds, 1e-9)) + 1))
                middle = timer.seconds(step, (repeat - 1) * per_tick / 2)
            spent = repeat * middle
        else:
            repeat, spent = 1, seconds
        clock.now += spent
        clock.busy += spent
        clock.iterations += repeat
        clock.decoded += repeat * step.decoding
        if step.decoding > clock.largest:
            clock.largest = step.decoding
        first, finished = complete(state, step, repeat)
        if sent:
            batch, sent = sent, []
        for request in first:
            clock.first[request.number] = clock.now
        for request in finished:
            ended.append((request, clock.now))
            if loop and upcoming < total:
                following = requests[upcoming]
                clock.started[following.number] = clock.now
                sent.append(following)
                upcoming += 1
    return _outcome(ended, clock, state)


def _outcome(ended: list[tuple[Request, float]], clock: _Clock, state: State) -> Outcome:
    arrival = np.array([clock.started[request.number] for request, _ in ended])
    first = np.array([clock.first[request.number] for request, _ in ended])
    end = np.array([when for _, when in ended])
    output = np.array([request.output for request, _ in ended], dtype=float)
    return Outcome(
        ttft=first - arrival,
        tpot=(end - first) / np.maximum(output - 1, 1),
        e2e=end - arrival,
        arrival=arrival,
        output=output,
        makespan=float(clock.now),
        iterations=clock.iterations,
        busy=clock.busy,
        preemptions=state.preemptions,
        largest=clock.largest,
        mean_decoding=clock.decoded / max(clock.iterations, 1),
    )


Lengths = Callable[[int], tuple[Array, Array]]


def lengths(isl: float, osl: float, low: float, high: float, count: int, seed: int = 0) -> list[Request]:
    """Requests whose lengths are drawn evenly between `low` and `high` of the nominal ones."""
    draw = np.random.default_rng(seed)
    prompts = np.maximum(np.rint(isl * draw.uniform(low, high, count)), 1).astype(int)
    outputs = np.maximum(np.rint(osl * draw.uniform(low, high, count)), 1).astype(int)
    return [Request(index, int(prompts[index]), int(outputs[index])) for index in range(count)]
