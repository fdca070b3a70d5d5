"""How much load one replica bears: simulated from a state that it runs in, up to the rate that keeps the targets.

A replica that is full from its start to its end tells how many requests a second it serves at most. At more than that
the queue grows for as long as requests come, which a short run does not show, so no plan asks for more than
`MOST_USED` of it. Below, the highest rate that keeps the targets at p90 is found by a few simulations, above the closed
form's rate as well as below. Each starts with the requests in flight that the closed form tells (Little's law), and
counts those alone that come after them: an empty replica would be quicker than it ever is at work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from weft.planner.errors import PlanError
from weft.planner.scheduler import Limits
from weft.planner.search import CONCURRENCIES, ENGINES, Point, Settings
from weft.planner.simulate import Outcome, StepTimer, simulate
from weft.planner.tables import Array
from weft.planner.traffic import Targets, Traffic

MOST_USED = 0.95
"""The part of what a replica serves when it is never idle that a plan loads it with: an assumption. Waiting grows
beyond all bounds towards 1."""
QUANTILE = 0.9
"""Targets hold for so many of the requests."""
_FEWEST, _MOST, _FEW, _STEPS = 800, 4000, 50, 100_000
"""Requests that a simulation counts at least, and has at most; fewer, not below the third, where their prompts alone
would take more steps than that."""
_FLAT = 0.99
"""The part of the closed form's highest rate from which on more requests in flight are taken to give nothing."""
_TRIALS = 7
_NEAR = 1.02
"""Rates are found to within so much, in so many simulations at most."""
RELAXED = 2.0
"""Where a target cannot be kept, how many times the least is planned for in its place: at the least itself each request
would have a replica to itself."""
_LEAST = 1e-3
"""A share of the targets that counts for any below it: answers of one token have no time for a second."""
_IDLE = 1e-3
"""The part of what a replica serves at most at which it is as good as alone with each request."""


@dataclass(frozen=True)
class Load:
    """What one replica bears, as simulated; rates are requests a second."""

    rate: float
    """The most that keeps the targets."""
    outcome: Outcome
    """What users see at that rate."""
    saturated: float
    """What a replica serves that is never idle: at more the queue grows without bound."""
    targets: Targets
    """Those that were planned for: what was asked for, or what can be kept in its place."""
    broken: tuple[str, ...] = ()
    """Targets that a simulated replica does not keep even where requests are alone in it."""


class Replica:
    """One replica of a mapping, simulated at any rate."""

    def __init__(self, point: Point, traffic: Traffic, settings: Settings) -> None:
        candidate = point.candidate
        self.point, self.traffic = point, traffic
        budget = settings.chunk * candidate.mapping.dp
        behaviour: dict[str, Any] = dict(ENGINES.get(settings.engine, ENGINES["weft"]))
        self.limits = Limits(
            tokens=budget,
            sequences=int(CONCURRENCIES[-1]),
            cache=int(candidate.fits * (traffic.isl + traffic.osl)),
            per_tick=settings.draft.per_step,
            **behaviour,
        )
        self.timer = StepTimer(candidate.costs, max(budget, 16384), drafted=settings.draft.tokens)
        self.most = int(min(_MOST, max(_FEW, _STEPS / max(traffic.isl / budget, 1.0))))

    @cached_property
    def full(self) -> int:
        """Requests in flight from which on more of them give nothing, by the closed form."""
        rates = self._rates
        return int(CONCURRENCIES[int(np.argmax(rates >= rates[-1] * _FLAT))])

    @cached_property
    def _rates(self) -> Array:
        """Requests a second by the closed form, over the concurrencies that fit."""
        there = self.point.candidate.service.rate[self.point.candidate.fits >= CONCURRENCIES]
        return np.maximum.accumulate(there) / self.traffic.osl

    def in_flight(self, rate: float) -> int:
        """Requests that are in the replica at a rate, by the closed form."""
        rates = self._rates
        if rate < rates[0]:
            return int(rate * self.point.candidate.service.e2e[0])
        return int(min(np.interp(rate, rates, CONCURRENCIES[: len(rates)]), self.full))

    def at(self, rate: float) -> Outcome:
        """What users see at a rate."""
        begun, count = self._counts(self.in_flight(rate))
        requests, arrivals = self.traffic.requests(rate, count)
        running = self.traffic.running(begun)
        return simulate(self.timer, self.limits, requests, arrivals, running=running, skipped=min(begun, count // 2))

    @cached_property
    def saturated(self) -> float:
        """Requests a second of a replica in which another begins whenever one ends."""
        begun, count = self._counts(self.full)
        requests, _ = self.traffic.requests(1.0, count)
        running = self.traffic.running(begun)
        skipped = min(begun, count // 2)
        seen = simulate(self.timer, self.limits, requests, concurrency=begun, running=running, skipped=skipped)
        starts = np.sort(seen.arrival)
        return (len(starts) - 1) / max(float(starts[-1] - starts[0]), 1e-12)

    def _counts(self, in_flight: int) -> tuple[int, int]:
        """Requests that a simulation begins with, and those that follow: so many more, and those that are counted, as
        many again, `_FEWEST` or a whole trace."""
        begun = min(in_flight, self.most)
        return begun, min(begun + max(begun, _FEWEST, len(self.traffic.trace)), self.most)


def sustained(point: Point, traffic: Traffic, settings: Settings, targets: Targets) -> tuple[Replica, Load]:
    """The highest rate at which a simulated replica keeps its targets, and what users see there."""
    replica = Replica(point, traffic, settings)
    most = replica.saturated * MOST_USED
    rate = most if targets == Targets() else min(point.figure("rate") / traffic.osl, most)
    low, high = 0.0, math.inf
    best: tuple[float, Outcome] | None = None
    tried: list[tuple[float, float]] = []
    for _ in range(_TRIALS):
        seen = replica.at(rate)
        over = max(excess(seen, targets), _LEAST)
        tried.append((rate, over))
        if over <= 1.0:
            best, low = (rate, seen), rate
        else:
            high = rate
        if low == most or high <= low * _NEAR or _NEAR**-1 <= over <= 1.0:
            break
        rate = _next(tried, low, high, most)
    if best is not None:
        return replica, Load(*best, replica.saturated, targets)
    alone = most * _IDLE
    seen = replica.at(alone)
    if excess(seen, targets) <= 1.0:
        return replica, Load(alone, seen, replica.saturated, targets)
    words, instead = _relax(seen, targets)
    replica, load = sustained(point, traffic, settings, instead)
    return replica, replace(load, broken=words)


def _next(tried: list[tuple[float, float]], low: float, high: float, most: float) -> float:
    """The rate to try next, between the highest good and the lowest bad one: where a line through the last two trials
    meets the targets, in logarithms, and away from both."""
    (rate, over) = tried[-1]
    guess = rate / over
    if len(tried) > 1:
        before, then = tried[-2]
        if (over - then) * (rate - before) > 0:
            slope = math.log(over / then) / math.log(rate / before)
            guess = rate * math.exp(max(min(-math.log(over) / slope, 1.0), -1.0))
    if high == math.inf:
        return min(max(guess, rate * _NEAR), most)
    floor = low or high / 4
    away = (high / floor) ** 0.1
    return min(max(guess, floor * away), high / away)


def excess(seen: Outcome, targets: Targets) -> float:
    """The times by which the worse of both is over its target, at p90: 1 and less keeps them."""
    if not len(seen.ttft):
        raise PlanError(
            "no request of the traffic ended while it was simulated", hint="give shorter prompts or answers"
        )
    return max(
        float(np.quantile(seen.ttft, QUANTILE)) / targets.ttft, float(np.quantile(seen.tpot, QUANTILE)) / targets.tpot
    )


def missed_targets(seen: Outcome, targets: Targets, rate: float) -> list[str]:
    """Which targets are broken at a rate, and by how much."""
    return [
        f"{name}: {value * 1e3:.4g} ms at p90 of what is simulated at {rate:.4g} requests/s of a replica, where "
        f"{wanted * 1e3:.4g} ms was planned for"
        for name, values, wanted in (("tpot", seen.tpot, targets.tpot), ("ttft", seen.ttft, targets.ttft))
        if (value := float(np.quantile(values, QUANTILE))) > wanted
    ]


def _relax(seen: Outcome, targets: Targets) -> tuple[tuple[str, ...], Targets]:
    """Which targets requests break that are alone in a replica, and what can be planned for in their place."""
    words: list[str] = []
    for name, values, wanted in (("tpot", seen.tpot, targets.tpot), ("ttft", seen.ttft, targets.ttft)):
        value = float(np.quantile(values, QUANTILE))
        if value > wanted:
            instead = RELAXED * value
            words.append(
                f"{name}: {value * 1e3:.4g} ms at p90 of simulated requests that are alone in a replica, where "
                f"{wanted * 1e3:.4g} ms was asked for; planned for are {instead * 1e3:.4g} ms"
            )
            targets = replace(targets, **{name: instead})
    return tuple(words), targets
