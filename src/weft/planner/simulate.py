"""An iteration-level simulation of one replica: the scheduler's steps, each as long as its costs say.

Runs of the same decoding step are taken at once, so that a simulated iteration costs what changes in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.planner.attention_costs import LENGTHS
from weft.planner.op_costs import over_rows
from weft.planner.scheduler import Limits, Request, State, Step, complete, schedule
from weft.planner.step_costs import StepCosts, surface
from weft.planner.tables import Array

_LENGTHS: list[float] = LENGTHS.tolist()


class StepTimer:
    """Times of steps from lookups of whole numbers: what the simulator asks for hundreds of thousands of times."""

    def __init__(
        self,
        costs: StepCosts,
        tokens: int = 16384,
        sequences: int = 2048,
        *,
        drafted: int = 0,
        graphs: Sequence[int] = (),
    ) -> None:
        """`graphs` are the sequences of a rank that decoding was captured with: steps of fewer have rows that count for
        nothing up to the next of these; none are padded where there are no graphs, or beyond the largest."""
        rows = np.arange(tokens + 1, dtype=float)
        per = np.maximum(rows / costs.stages, 1.0)
        local = np.maximum(per * costs.share, 1.0)
        self.rows: list[float] = (over_rows(local, costs.tokens) + over_rows(per, costs.experts)).tolist()
        self.spread = costs.share < 1.0
        """Whether a prompt is on one of several ranks of attention, which the others wait for."""
        self.alone: list[float] = over_rows(per, costs.tokens).tolist() if self.spread else []
        self.experts: list[float] = over_rows(per, costs.experts).tolist() if self.spread else []
        self.given: list[float] = over_rows(local, costs.sequences).tolist()
        self.decode: list[float] = over_rows(local, costs.decode).tolist()
        self.prefill: list[float] = over_rows(local, costs.prefill).tolist()
        batch = np.maximum(np.arange(sequences + 1, dtype=float) / costs.stages * costs.share, 1.0)
        grid = surface(costs.decode_attention, batch[:, None], LENGTHS[None, :])
        self.attention: list[list[float]] = grid.tolist()
        self.prompts: list[float] = costs.prefill_attention.tolist()
        self.prompt_least = self.prompts[0]
        self.share = costs.share / costs.stages
        self.stages = costs.stages
        self.width = drafted + 1
        self.limit = tokens
        self.most = sequences
        self.padded = _padded(sequences, round(1.0 / costs.share), sorted(graphs)) if graphs else []

    def _along(self, values: list[float], length: float) -> float:
        j = bisect_right(_LENGTHS, length) - 1
        j = min(max(j, 0), len(_LENGTHS) - 2)
        low = _LENGTHS[j]
        return values[j] + (values[j + 1] - values[j]) * (length - low) / (_LENGTHS[j + 1] - low)

    def seconds(self, step: Step, ahead: float = 0.0) -> float:
        """A step's time; `ahead` moves its context on by so many tokens a sequence."""
        decoding = step.decoding
        new = most = last = 0
        total = longest = 0.0
        for chunk in step.chunks:
            new += chunk.new
            last += chunk.last
            most = max(most, chunk.new)
            spent = self._along(self.prompts, chunk.prefix + chunk.new)
            if chunk.prefix:
                spent = max(spent - self._along(self.prompts, chunk.prefix), 0.0) + self.prompt_least
            total += spent - self.prompt_least
            longest = max(longest, spent - self.prompt_least)
        if step.chunks:
            total = max(total * self.share, longest / self.stages)
            total += self.prompt_least + self.prefill[min(new, self.limit)]
        rows = decoding * self.width
        if self.padded and not step.chunks and decoding <= self.most:
            rows = self.padded[decoding] * self.width
        if self.spread and step.chunks:
            local = max(new * self.share * self.stages, most) + rows * self.share * self.stages
            total += self.alone[min(int(local), self.limit)] + self.experts[min(new + rows, self.limit)]
        else:
            total += self.rows[min(new + rows, self.limit)]
        total += self.given[min(rows + last, self.limit)]
        if decoding:
            context = step.context / decoding + ahead
            total += self.decode[min(rows, self.limit)] + self._along(self.attention[min(decoding, self.most)], context)
        return total


def _padded(most: int, ranks: int, graphs: Sequence[int]) -> list[int]:
    """By sequences of a replica: how many there are with those that fill up the graph of each rank."""
    found: list[int] = []
    for sequences in range(most + 1):
        here = -(-sequences // ranks)
        at = bisect_left(graphs, here)
        found.append(graphs[at] * ranks if at < len(graphs) and here else sequences)
    return found


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


@dataclass(frozen=True)
class FrontEnd:
    """What a request passes on its way to the engine, one at a time: the network, HTTP and the tokenizer.

    Both figures are assumptions, of the size that servers in Python have; they decide whether requests that were sent
    together are still together when the engine sees them.
    """

    per_request: float = 1e-3
    per_token: float = 1e-6


@dataclass
class _Clock:
    now: float = 0.0
    busy: float = 0.0
    iterations: int = 0
    largest: int = 0
    decoded: float = 0.0
    free: float = 0.0
    """When the front end has nothing more to do."""
    started: dict[int, float] = field(default_factory=dict[int, float])
    first: dict[int, float] = field(default_factory=dict[int, float])
    inbox: deque[tuple[float, Request]] = field(default_factory=deque[tuple[float, Request]])
    """What was sent, with when the engine sees it."""

    def send(self, request: Request, when: float, front: FrontEnd) -> None:
        self.started[request.number] = when
        self.free = max(self.free, when) + front.per_request + front.per_token * request.prompt
        self.inbox.append((self.free, request))


def simulate(
    timer: StepTimer,
    limits: Limits,
    requests: Sequence[Request],
    arrivals: Sequence[float] | None = None,
    *,
    concurrency: int = 0,
    ramp: float = 0.0,
    front: FrontEnd | None = None,
    running: Sequence[Request] = (),
    skipped: int = 0,
) -> Outcome:
    """Serve all requests: at their arrivals, in order, or in a closed loop of so many clients that never think.

    The clients of a closed loop begin at once, or one after another over `ramp` seconds. What is `running` already, by
    numbers below zero, is in the engine at the start and in no figure at the end; nor are the first `skipped` requests.
    """
    state, clock, front = State(limits), _Clock(), front or FrontEnd()
    total = len(requests)
    following = total
    for request in running:
        clock.started[request.number] = 0.0
        clock.inbox.append((0.0, request))
    if arrivals is not None:
        for request, when in zip(requests, arrivals, strict=True):
            clock.send(request, float(when), front)
    else:
        following = min(max(concurrency - len(running), 0), total)
        for number, request in enumerate(requests[:following]):
            clock.send(request, ramp * number / following, front)
    ended: list[tuple[Request, float]] = []
    per_tick, inbox = limits.per_tick, clock.inbox
    prepared: list[Request] = []
    while len(ended) < total + len(running):
        batch: list[Request] = []
        while inbox and inbox[0][0] <= clock.now:
            batch.append(inbox.popleft()[1])
        if limits.ahead and (state.ends or state.filling):
            batch, prepared = prepared, batch
        elif prepared:
            batch, prepared = [*prepared, *batch], []
        step = schedule(state, batch)
        if not step.decoding and not step.chunks:
            if not inbox:
                break
            clock.now = inbox[0][0]
            continue
        repeat = 1 if prepared else step.repeat
        spent = timer.seconds(step)
        if repeat > 1:
            if inbox and clock.now + repeat * spent > inbox[0][0]:
                repeat = max(1, min(repeat, int((inbox[0][0] - clock.now) / max(spent, 1e-9)) + 1))
            # Contexts grow by a token a tick: times are close to linear in it, so the middle stands for all.
            spent = repeat * (timer.seconds(step, (repeat - 1) * per_tick / 2) if repeat > 1 else spent)
        clock.now += spent
        clock.busy += spent
        clock.iterations += repeat
        clock.decoded += repeat * step.decoding
        clock.largest = max(clock.largest, step.decoding)
        first, finished = complete(state, step, repeat)
        # A chunk leaves the last stage when those behind it are in the stages before.
        late = spent * (timer.stages - 1)
        for request in first:
            clock.first[request.number] = clock.now + late
        for request in finished:
            ended.append((request, max(clock.now, clock.first[request.number])))
            if following < total:
                clock.send(requests[following], clock.now, front)
                following += 1
    return _outcome([each for each in ended if each[0].number >= skipped], clock, state)


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


def lengths(isl: float, osl: float, low: float, high: float, count: int, seed: int = 0) -> list[Request]:
    """Requests whose lengths are drawn evenly between `low` and `high` of the nominal ones."""
    draw = np.random.default_rng(seed)
    prompts = np.maximum(np.rint(isl * draw.uniform(low, high, count)), 1).astype(int)
    outputs = np.maximum(np.rint(osl * draw.uniform(low, high, count)), 1).astype(int)
    return [Request(index, int(prompts[index]), int(outputs[index])) for index in range(count)]
