"""The planner against published throughput at the highest load: every run simulated as its publisher made it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.planner.capacity import CACHE_RULES, resident
from weft.planner.hardware import Gpu
from weft.planner.mapping import Mapping as Parallel
from weft.planner.mapping import fits_heads, rank_program
from weft.planner.model import Model, SelfAttention
from weft.planner.scheduler import Limits
from weft.planner.search import ENGINES
from weft.planner.simulate import FrontEnd, StepTimer, lengths, simulate
from weft.planner.step_costs import StepCosts
from weft.testing.planner_accuracy import Errors, Pricer
from weft.testing.planner_rows import (
    PUBLISHED,
    Row,
    Unpriced,
    checkpoint,
    gpu_of_system,
    measured_rows,
    number,
    whole,
)

_BATCH, _LEAST_BATCH, _LEAST_TOKENS, _MOST_TOKENS, _FREE = 4096, 64, 2048, 32768, 0.95
"""What `trtllm-bench` lets a step have (NVIDIA/TensorRT-LLM, bench/build/tuning.py): sequences, tokens, and the part of
the memory beside the weights that it takes for the cache when it reckons how many sequences there will be."""
_REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (1000, 2000): 1500,
    (1024, 1024): 3000, (1024, 8192): 1500, (1024, 32768): 1000, (2048, 128): 3000, (2048, 2048): 1500,
    (5000, 500): 1500, (8192, 1024): 1500, (20000, 2000): 1000, (32768, 1024): 1000,
}  # fmt: skip
"""Requests of a published run by its lengths, all queued at once (NVIDIA/TensorRT-LLM, perf-overview.md)."""


_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Batches that the published runs capture decoding with, and pad to (the same page, `cuda_graph_config`). Of those
beyond what a step may have the engine captures what it may (pyexecutor/model_engine.py)."""
_RATES = ("total_output_throughput", "output_throughput_per_gpu")
_ENGINES = {"tensorrt-llm": "trtllm", "vllm": "vllm", "sglang": "sglang"}


def throughput(folder: Path) -> Iterator[Errors]:
    """All requests at once, as vendors publish it: output tokens a second, first of GPUs that have tables."""
    measured = Errors("throughput at the highest load, simulated")
    moved = Errors("throughput at the highest load on GPUs without tables, simulated with another's")
    pricer = Pricer(folder)
    for row in measured_rows(folder / "published_throughput.csv", PUBLISHED):
        try:
            gpu, error = _error(pricer, row)
        except Unpriced as reason:
            measured.leave_out(str(reason))
            continue
        family = f"{row['hw']} {row['model']} {row['engine']}"
        (measured if gpu.measured else moved).add(family, error)
    yield from (measured, moved)


def _error(pricer: Pricer, row: Row) -> tuple[Gpu, float]:
    """By how much a row's rate is off."""
    if row["metric"] not in _RATES or row["load"] != "max":
        raise Unpriced("no output throughput at the highest load")
    engine = _ENGINES.get(row["engine"].lower().split(" ")[0])
    if engine is None:
        raise Unpriced(f"no engine {row['engine']}")
    gpu = gpu_of_system(row["hw"])
    model, kv = checkpoint(row["model"], row["precision"])
    parallel = _parallel(row["mapping"], model)
    isl, osl = whole(row, "isl"), whole(row, "osl")
    program, costs, room = pricer.priced(row["hw"], engine, model, parallel, kv)
    fits = resident(room, program, parallel, isl + osl, CACHE_RULES.get(engine))
    if fits < 1:
        raise Unpriced("does not fit")
    held = Held(rank_program(model, Parallel()).weight_bytes, _tool_bytes(model, parallel, 1 if kv == "fp8" else 2))
    rate = at_once(costs, parallel, engine, isl, osl, fits, held, gpu)
    rate /= parallel.gpus if row["metric"].endswith("per_gpu") else 1
    return gpu, rate / number(row, "value") - 1


@dataclass(frozen=True)
class Held:
    """What the tool that runs a benchmark takes a model to hold, in bytes of the whole replica."""

    weights: float
    cache_per_token: float


def _tool_bytes(model: Model, parallel: Parallel, kv: int) -> float:
    """A token's cache as the tool reckons it: keys and values of every head, for latent attention too."""
    found = 0.0
    for layer, count in model.layers:
        mixer = layer.mixer
        if isinstance(mixer, SelfAttention):
            size = model.hidden // mixer.heads if mixer.latent else mixer.head_dim
            found += count * 2 * max(parallel.gpus, mixer.kv_heads) * size * kv
    return found


def at_once(
    costs: StepCosts, parallel: Parallel, engine: str, isl: int, osl: int, fits: int, held: Held, gpu: Gpu
) -> float:
    """Output tokens a second of a run whose requests are all there at its start, in the engine's own process. A step of
    each rank of attention has as many sequences and tokens as the tool reckons with."""
    room = (gpu.memory * parallel.gpus - held.weights) * _FREE
    reckoned = min(max(room / max(held.cache_per_token * (isl + osl), 1.0), 1.0), _BATCH)
    batch = max(_LEAST_BATCH, round(reckoned))
    tokens = min(max(round(reckoned * (1 + isl / osl)), _LEAST_TOKENS), _MOST_TOKENS) * parallel.dp
    requests = lengths(isl, osl, 1.0, 1.0, _REQUESTS.get((isl, osl), 3000))
    behaviour: dict[str, Any] = dict(ENGINES[engine])
    limits = Limits(tokens=tokens, sequences=batch * parallel.dp, cache=fits * (isl + osl), **behaviour)
    most = min(batch, tokens // parallel.dp)
    graphs = [each for each in _GRAPHS if each < most] + [min(most, _GRAPHS[-1])]
    timer = StepTimer(costs, max(tokens, 16384), max(2048, batch * parallel.dp), graphs=graphs)
    return simulate(timer, limits, requests, [0.0] * len(requests), front=FrontEnd(0.0, 0.0)).output_rate


def _parallel(text: str, model: Model) -> Parallel:
    """A mapping as tables call it: `TP4`, or `DEP4` for attention that is data parallel over ranks of experts."""
    found = re.fullmatch(r"(TP|DEP)([1-9]\d*)", text.strip())
    if found is None:
        raise Unpriced(f"mapping {text!r}" if text.strip() else "no mapping")
    ranks = int(found.group(2))
    if found.group(1) == "DEP":
        parallel = Parallel(1, 1, ranks, 1, ranks if model.has_experts else 1)
    else:
        parallel = Parallel(ranks, 1, 1, ranks if model.has_experts else 1, 1)
    if not fits_heads(model, parallel):
        raise Unpriced(f"{parallel} does not divide {model.name}")
    return parallel
