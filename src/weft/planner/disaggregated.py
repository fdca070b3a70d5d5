"""Disaggregated serving in closed form: workers for prompts and workers for decoding, in whole numbers that match.

For traffic with a rate these are the fewest GPUs that serve it; without one, the ratio that gives most for a GPU among
those of a replica's size. Nothing here is simulated, and the cache's transfer is by specification.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.planner.hardware import Gpu
from weft.planner.search import CONCURRENCIES, Candidate, Point, Settings, served
from weft.planner.traffic import Targets, Traffic

_USED = 0.8
"""The part of a prompt worker's rate that it is loaded with."""
_WORKERS = 64
"""Workers of a kind that a ratio is made of, at most."""
_BETTER = 1.01
"""How many times as much a GPU has to give for more GPUs to be taken where there is no rate to serve."""


@dataclass(frozen=True)
class Disaggregated:
    """Workers for prompts and workers for decoding, in whole numbers that match their rates."""

    prefill: Candidate
    decode: Point
    prefill_workers: int
    decode_workers: int
    rate: float
    """Requests a second that they serve at most."""
    per_gpu: float
    ttft: float
    tpot: float
    transfer: float
    """Seconds that a prompt's cache takes over the network: by specification, unmeasured."""

    @property
    def gpus(self) -> int:
        decoding = self.decode.candidate.mapping.gpus * self.decode_workers
        return self.prefill.mapping.gpus * self.prefill_workers + decoding


def disaggregate(
    found: Sequence[Candidate], gpu: Gpu, traffic: Traffic, settings: Settings, targets: Targets
) -> Disaggregated | None:
    """The best pair of worker kinds, by integer matching of their rates; None where no pair keeps the targets."""
    best: Disaggregated | None = None
    by_prompt = sorted(found, key=lambda each: each.service.prompt * each.mapping.gpus)[:6]
    alone = {id(each): served(each.costs, each.mapping, traffic, settings, each.fits, isl=1.0) for each in found}
    for first in by_prompt:
        whole = first.program.kv_bytes_per_token * traffic.isl * (1.0 - traffic.prefix)
        transfer = gpu.network_latency + whole / gpu.network if gpu.network else math.inf
        seconds = first.service.prompt * first.costs.stages
        # Prompts queue one at a time: half of ρ/(1 − ρ) services on average.
        ttft = seconds * (1 + 0.5 * _USED / (1 - _USED)) + transfer
        if ttft > targets.ttft:
            continue
        prompts = _USED / first.service.prompt
        for second in found:
            context = traffic.isl + traffic.osl / 2
            step = np.asarray(second.costs.decode_step(CONCURRENCIES, context)) / settings.draft.per_step
            usable = np.flatnonzero((step <= targets.tpot) & (second.fits >= CONCURRENCIES))
            if not usable.size:
                continue
            index = int(usable[-1])
            finished = float(CONCURRENCIES[index] / step[index]) / traffic.osl
            for x, y in _workers(prompts, finished, traffic, first.mapping.gpus, second.mapping.gpus, settings):
                rate = min(x * prompts, y * finished)
                per_gpu = rate * traffic.osl / (x * first.mapping.gpus + y * second.mapping.gpus)
                point = Point(replace(second, service=replace(alone[id(second)], tpot=step)), index)
                pair = Disaggregated(first, point, x, y, rate, per_gpu, ttft, float(step[index]), transfer)
                if best is None or _better(pair, best, traffic):
                    best = pair
    return best


def _workers(
    prompts: float, finished: float, traffic: Traffic, prompt_gpus: int, decode_gpus: int, settings: Settings
) -> Iterator[tuple[int, int]]:
    """Numbers of both kinds: those that serve the traffic's rate, or the matched ones within a replica's GPUs."""
    if traffic.rate:
        most = [max(1, math.ceil(traffic.rate / each - 1e-9)) for each in (prompts, finished)]
        yield most[0], most[1]
        return
    for count in range(1, _WORKERS + 1):
        for x, y in (
            (max(1, round(count * finished / prompts)), count),
            (count, max(1, round(count * prompts / finished))),
        ):
            if x * prompt_gpus + y * decode_gpus <= settings.max_gpus:
                yield x, y


def _better(one: Disaggregated, other: Disaggregated, traffic: Traffic) -> bool:
    """Whether one is to be had before the other: for a rate the fewer GPUs, else what a GPU gives."""
    if traffic.rate:
        return (one.gpus, -one.per_gpu) < (other.gpus, -other.per_gpu)
    if one.gpus > other.gpus:
        return one.per_gpu > other.per_gpu * _BETTER
    return one.per_gpu * _BETTER > other.per_gpu
