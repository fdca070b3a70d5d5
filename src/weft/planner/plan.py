"""A plan: the chosen mapping, its fleet, what users see, what binds, and how much each assumption matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.planner.disaggregated import Disaggregated, disaggregate
from weft.planner.formats import held
from weft.planner.hardware import Gpu
from weft.planner.load import RELAXED, Load, Replica, excess, missed_targets, sustained
from weft.planner.mapping import Mapping
from weft.planner.model import Model
from weft.planner.op_costs import OpCosts
from weft.planner.search import (
    Candidate,
    Point,
    Settings,
    candidates,
    front,
    meets,
    nearest,
    open_costs,
    points,
    priced_steps,
    refuse,
    served,
)
from weft.planner.simulate import Outcome
from weft.planner.traffic import Targets, Traffic

_SIMULATED, _MOST_SIMULATED, _MORE_REPLICAS = 3, 12, 8
"""How many of the best mappings are simulated, up to how many while the closed form promises more than was seen,
and how many numbers of replicas are tried for the chosen one."""


@dataclass(frozen=True)
class Plan:
    """The answer to: this model, this traffic, these targets; which GPUs, how many, mapped how, at what cost."""

    model: Model
    gpu: Gpu
    traffic: Traffic
    targets: Targets
    settings: Settings
    chosen: Point
    alternatives: list[Point]
    front: list[Point]
    load: Load
    """What a replica bears, as simulated."""
    at_rate: float
    """Requests a second of a replica that `outcome` is of: its part of those asked for, or the most that it bears."""
    outcome: Outcome
    replicas: int
    spare: int
    gives_way: list[str]
    """Targets that no mapping meets, with by how much."""
    disaggregated: Disaggregated | None
    sensitivity: dict[str, float]
    configurations: int

    @property
    def rate(self) -> float:
        """Requests a second that a replica keeps up with, as simulated."""
        return self.load.rate

    @property
    def used(self) -> float:
        """The part of what a replica serves when it is never idle that it is loaded with."""
        return self.at_rate / self.load.saturated

    @property
    def sequences(self) -> int:
        """Sequences that a replica has to be let run together: what the search took, or what was simulated."""
        return max(math.ceil(self.chosen.figure("concurrency")), self.load.outcome.largest)

    @property
    def gpus(self) -> int:
        return (self.replicas + self.spare) * self.chosen.candidate.mapping.gpus

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.gpu.gpus_per_node)

    @property
    def racks(self) -> int:
        return math.ceil(self.gpus / self.gpu.gpus_per_rack)

    @property
    def served(self) -> float:
        """Requests a second that the plan is for: those asked for, or one replica's."""
        return self.traffic.rate or self.rate

    @property
    def longest(self) -> int:
        """Tokens that an engine is started for: those of the longest request, and one more if the model has it."""
        return self._tokens + (self._tokens != self.model.max_length)

    @property
    def _tokens(self) -> int:
        """Tokens of the longest request, prompt and output."""
        if self.traffic.trace:
            return max(given + answered for _, given, answered in self.traffic.trace)
        return int((self.traffic.isl + self.traffic.osl) * (1 + self.traffic.spread))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the plan takes for granted of the model."""
        most = self.model.max_length
        if not 0 < most < self._tokens:
            return self.model.assumptions
        told = f"requests have up to {self._tokens:,} tokens, and the model's configuration allows {most:,}"
        return (*self.model.assumptions, told)

    @property
    def cost_per_million(self) -> float:
        """Dollars for a million output tokens, spare replicas included."""
        return self.gpus * self.gpu.price_per_hour / 3600 / (self.served * self.traffic.osl) * 1e6

    def shares(self) -> dict[str, float]:
        """Parts of a decoding step by kind of operation."""
        costs = self.chosen.candidate.costs
        batch, context = self.chosen.figure("resident"), self.traffic.isl + self.traffic.osl / 2
        found: dict[str, float] = {}
        for part in costs.parts:
            found[part.kind] = found.get(part.kind, 0.0) + costs.part_seconds(part, batch, context)
        total = sum(found.values())
        return {kind: seconds / total for kind, seconds in sorted(found.items(), key=lambda each: -each[1])}

    @property
    def band(self) -> float:
        """The part by which a decoding step may be off."""
        return self.chosen.candidate.costs.band(self.chosen.figure("resident"), self.traffic.isl + self.traffic.osl / 2)


@dataclass(frozen=True)
class Choice:
    """The mapping that is chosen, simulated, with what it was chosen from."""

    model: Model
    """As the GPU runs it."""
    chosen: Point
    ranked: list[Point]
    replica: Replica
    load: Load
    gives_way: list[str]
    every: list[Point]
    fitting: list[Candidate]

    @property
    def rate(self) -> float:
        """Requests a second that a replica keeps up with."""
        return self.load.rate

    def at(self, rate: float) -> Outcome:
        """What users see at a rate of a replica."""
        return self.load.outcome if rate == self.rate else self.replica.at(rate)

    @property
    def mapping(self) -> Mapping:
        return self.chosen.candidate.mapping


def choose(model: Model, gpu: Gpu, traffic: Traffic, targets: Targets, settings: Settings, costs: OpCosts) -> Choice:
    """Search in closed form, simulate the best mappings, and take the one that needs the fewest GPUs."""
    return choices(model, gpu, traffic, targets, settings, costs)[0]


def choices(
    model: Model,
    gpu: Gpu,
    traffic: Traffic,
    targets: Targets,
    settings: Settings,
    costs: OpCosts,
    for_parts: bool = False,
) -> list[Choice]:
    """The best mappings for the traffic, simulated, the best first; `for_parts` of it, the one whose GPUs give most and
    the one with the fewest GPUs as well."""
    model = held(model, gpu, settings.kv)
    found, failing = candidates(model, gpu, costs, traffic, settings)
    if not found:
        raise refuse(model, gpu, failing, settings)
    every = points(found)
    gives_way: list[str] = []
    good = [each for each in every if meets(each, targets)]
    if not good:
        gives_way, targets = _relax(nearest(every, targets), every, targets)
        good = [each for each in every if meets(each, targets)]
    ranked = _best_of_each(good)
    other = [ranked[0], min(ranked, key=lambda each: each.candidate.mapping.gpus)] if for_parts else []
    if traffic.rate:  # of a load that few GPUs serve, what a full one would give is no reason to take more
        ranked.sort(key=lambda each: _gpus(each, each.figure("rate") / traffic.osl, traffic, settings))
    tried: list[Choice] = []

    def wanted(each: Choice) -> tuple[float, ...]:
        return len(each.gives_way), _gpus(each.chosen, each.rate, traffic, settings), -each.rate / each.mapping.gpus

    def may_be_better(point: Point) -> bool:
        """Whether the closed form promises more of a mapping than the best has that was simulated."""
        rate = point.figure("rate") / traffic.osl
        promised = _gpus(point, rate, traffic, settings), -rate / point.candidate.mapping.gpus
        return (len(gives_way), *promised) < min(map(wanted, tried))

    for number, point in enumerate({id(each): each for each in (*other, *ranked[:_MOST_SIMULATED])}.values()):
        if number < _SIMULATED + len(other) or may_be_better(point):
            replica, load = sustained(point, traffic, settings, targets)
            tried.append(Choice(model, point, ranked, replica, load, [*gives_way, *load.broken], every, found))
    return sorted(tried, key=wanted)


def plan(
    model: Model, gpu: Gpu, traffic: Traffic, targets: Targets, settings: Settings, tables: Path | None = None
) -> Plan:
    """Search, simulate the best, and size the fleet."""
    model = held(model, gpu, settings.kv)
    costs = open_costs(gpu, tables, settings.engine)
    made = choose(model, gpu, traffic, targets, settings, costs)
    chosen = made.chosen
    replicas, rate, outcome, missed = _served(made, traffic)
    return Plan(
        model=model,
        gpu=gpu,
        traffic=traffic,
        targets=targets,
        settings=settings,
        chosen=chosen,
        alternatives=[each for each in made.ranked if each is not chosen][:5],
        front=front(made.every),
        load=made.load,
        at_rate=rate,
        outcome=outcome,
        replicas=replicas,
        spare=settings.spare,
        gives_way=[*made.gives_way, *missed],
        disaggregated=disaggregate(made.fitting, gpu, traffic, settings, targets),
        sensitivity=_sensitivity(chosen, costs, traffic, settings),
        configurations=len(made.every),
    )


def _served(made: Choice, traffic: Traffic) -> tuple[int, float, Outcome, list[str]]:
    """Replicas for the traffic, the rate of each, what users see at it, and the targets that it breaks.

    Bursts are as long at a lower rate, so that a replica may keep its targets at its highest rate and not below it:
    then there are more replicas, up to a point.
    """
    fewest = _replicas(made.rate, traffic)
    found: list[tuple[int, float, Outcome]] = []
    for replicas in range(fewest, fewest + _MORE_REPLICAS if traffic.rate else fewest + 1):
        rate = traffic.rate / replicas if traffic.rate else made.rate
        outcome = made.at(rate)
        if excess(outcome, made.load.targets) <= 1.0:
            return replicas, rate, outcome, []
        found.append((replicas, rate, outcome))
    replicas, rate, outcome = found[0]
    return replicas, rate, outcome, missed_targets(outcome, made.load.targets, rate)


def _gpus(point: Point, rate: float, traffic: Traffic, settings: Settings) -> int:
    """GPUs of all replicas and spares that the traffic takes, at so many requests a second of a replica; none where the
    traffic has no rate."""
    if not traffic.rate:
        return 0
    return (_replicas(rate, traffic) + settings.spare) * point.candidate.mapping.gpus


def _replicas(rate: float, traffic: Traffic) -> int:
    return max(1, math.ceil(traffic.rate / max(rate, 1e-12) - 1e-9)) if traffic.rate else 1


def _best_of_each(good: list[Point]) -> list[Point]:
    """The best concurrency of each mapping, the best mapping first; of equals, the one with fewer GPUs."""
    best: dict[Any, Point] = {}
    for point in good:
        mapping = point.candidate.mapping
        if mapping not in best or point.per_gpu > best[mapping].per_gpu:
            best[mapping] = point
    return sorted(best.values(), key=lambda each: (-each.per_gpu, each.candidate.mapping.gpus))


def _relax(point: Point, every: list[Point], targets: Targets) -> tuple[list[str], Targets]:
    """Which targets the nearest point breaks, by how much, and what can be planned for in their place."""
    words: list[str] = []
    for name, wanted in (("tpot", targets.tpot), ("ttft", targets.ttft)):
        value = point.figure(name)
        if value > wanted:
            least = min(each.figure(name) for each in every)
            instead = max(value, RELAXED * least)
            asked = f"{value * 1e3:.4g} ms where {wanted * 1e3:.4g} ms was asked for"
            told = f"the least of any mapping is {least * 1e3:.4g} ms, planned for are {instead * 1e3:.4g} ms"
            words.append(f"{name}: {asked}; {told}")
            targets = replace(targets, **{name: instead})
    return words, targets


def _sensitivity(chosen: Point, costs: OpCosts, traffic: Traffic, settings: Settings) -> dict[str, float]:
    """How much more a GPU gives with 10 % more of each thing, in parts, at the chosen concurrency."""
    candidate, gpu = chosen.candidate, costs.gpu
    changes = {
        "memory bandwidth": replace(gpu, bandwidth=gpu.bandwidth * 1.1),
        "matmul peak": replace(gpu, bf16=gpu.bf16 * 1.1, fp8=gpu.fp8 * 1.1, fp4=gpu.fp4 * 1.1),
        "NVLink": replace(gpu, nvlink=gpu.nvlink * 1.1),
        "network": replace(gpu, network=gpu.network * 1.1),
    }
    found: dict[str, float] = {}
    base = _again(candidate, OpCosts(replace(gpu), costs.tables, costs.reference), traffic, settings, chosen.index)
    for name, changed in changes.items():
        found[name] = (
            _again(candidate, OpCosts(changed, costs.tables, costs.reference), traffic, settings, chosen.index) / base
            - 1
        )
    for name, other in (
        ("input length", replace(traffic, isl=traffic.isl * 1.1)),
        ("output length", replace(traffic, osl=traffic.osl * 1.1)),
    ):
        fits = max(1, int(candidate.fits * (traffic.isl + traffic.osl) / (other.isl + other.osl)))
        service = served(candidate.costs, candidate.mapping, other, settings, fits)
        found[name] = float(service.rate[chosen.index] / candidate.service.rate[chosen.index]) - 1
    return found


def _again(candidate: Candidate, costs: OpCosts, traffic: Traffic, settings: Settings, index: int) -> float:
    priced = priced_steps(candidate.program, costs, settings)
    service = served(priced, candidate.mapping, traffic, settings, candidate.fits)
    return float(service.rate[index])


def quantiles(values: Any) -> dict[str, float]:
    """p50, p90 and p99."""
    return {f"p{each}": float(np.quantile(values, each / 100)) for each in (50, 90, 99)}
