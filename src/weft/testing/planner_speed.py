"""How quick the planner is on this machine: configurations priced and iterations simulated in a second of CPU time.

A figure to read, not a bar to pass: it is the machine's as much as the planner's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model
from weft.planner.scheduler import Limits
from weft.planner.search import Settings, candidates, open_costs, points
from weft.planner.simulate import StepTimer, lengths, simulate
from weft.planner.step_costs import step_costs
from weft.planner.traffic import Traffic

_SECONDS = 0.5


def planner_speed() -> dict[str, float]:
    """Configurations of a 70B model's search a second, and iterations of an 8B model's replica of 32 clients."""
    gpu = find_gpu("h200")
    costs = open_costs(gpu, None, "weft")
    large, small = find_model("Llama-3.1-70B"), find_model("Llama-3.1-8B")
    timer = StepTimer(step_costs(rank_program(small, Mapping()), costs, "bfloat16"))
    requests = lengths(1024, 1024, 0.8, 1.0, 300)
    return {
        "configurations_s": _a_second(
            lambda: len(points(candidates(large, gpu, costs, Traffic(), Settings(max_gpus=32))[0]))
        ),
        "iterations_s": _a_second(lambda: simulate(timer, Limits(), requests, concurrency=32).iterations),
    }


def _a_second(once: Callable[[], int]) -> float:
    """What `once` counts, a second of CPU time; the first turn, which reads tables and makes curves, is left out."""
    once()
    begun, count = time.process_time(), 0
    while (spent := time.process_time() - begun) < _SECONDS:
        count += once()
    return count / spent
