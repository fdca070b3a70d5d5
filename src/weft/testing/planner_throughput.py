"""The planner against published throughput at the highest load: every run simulated as its publisher made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.planner.capacity import CACHE_RULES, resident
from weft.planner.hardware import Gpu, catalogue
from weft.planner.mapping import Mapping as Parallel
from weft.planner.mapping import rank_program
from weft.planner.model import Model, SelfAttention
from weft.planner.scheduler import Limits
from weft.planner.search import ENGINES
from weft.planner.simulate import FrontEnd, StepTimer, lengths, simulate
from weft.planner.step_costs import StepCosts
from weft.testing.planner_accuracy import Errors, Pricer, checkpoint, is_known, measured_gpu, measured_rows

_BATCH, _LEAST_BATCH, _LEAST_TOKENS, _MOST_TOKENS, _FREE = 4096, 64, 2048, 32768, 0.95
"""What `trtllm-bench` lets a step have (NVIDIA/TensorRT-LLM, bench/build/tuning.py): sequences, tokens, and the part of
the memory beside the weights that it takes for the cache when it reckons how many sequences there will be."""
_REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (1000, 2000): 1500,
    (1024, 1024): 3000, (1024, 8192): 1500, (1024, 32768): 1000, (2048, 128): 3000, (2048, 2048): 1500,
    (5000, 500): 1500, (8192, 1024): 1500, (20000, 2000): 1000, (32768, 1024): 1000,
}  # fmt: skip
"""Requests of a published run by its lengths, all queued at once (NVIDIA/TensorRT-LLM, perf-overview.md)."""


def throughput(folder: Path) -> Errors:
    """All requests at once, as vendors publish it: output tokens a second of rows whose GPU has tables."""
    errors = Errors("throughput at the highest load, simulated")
    pricer = Pricer(folder)
    systems = {each.device.split()[1]: each.tables for each in catalogue().values() if each.measured}
    for row in measured_rows(folder / "published_throughput.csv"):
        system = systems.get(row["hw"].split("-")[0])
        engine = (
            "trtllm" if row["engine"].startswith("TensorRT-LLM") else "vllm" if row["engine"].startswith("vLLM") else ""
        )
        wanted = row["metric"] in ("total_output_throughput", "output_throughput_per_gpu") and row["load"] == "max"
        parallel = _parallel(row["mapping"])
        if not (wanted and system and engine and parallel and is_known(row["model"])):
            continue
        model, kv = checkpoint(row["model"], row["precision"], "")
        parallel = parallel if model.has_experts else Parallel(parallel.tp)
        program, costs, room = pricer.priced(system, engine, model, parallel, kv)
        isl, osl = int(row["isl"]), int(row["osl"])
        fits = resident(room, program, parallel, isl + osl, CACHE_RULES.get(engine))
        if fits < 1:
            errors.left_out["does not fit"] = errors.left_out.get("does not fit", 0) + 1
            continue
        held = Held(rank_program(model, Parallel()).weight_bytes, _tool_bytes(model, parallel, 1 if kv == "fp8" else 2))
        rate = at_once(costs, parallel, engine, isl, osl, fits, held, measured_gpu(system))
        rate /= parallel.gpus if row["metric"].endswith("per_gpu") else 1
        errors.add(f"{row['hw']} {row['model']} {row['engine']}", rate / float(row["value"]) - 1)
    return errors


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
    timer = StepTimer(costs, max(tokens, 16384), max(2048, batch * parallel.dp))
    return simulate(timer, limits, requests, [0.0] * len(requests), front=FrontEnd(0.0, 0.0)).output_rate


def _parallel(text: str) -> Parallel | None:
    if text.startswith("DEP") and text[3:].isdigit():
        return Parallel(1, 1, int(text[3:]), 1, int(text[3:]))
    return Parallel(int(text[2:]), 1, 1, int(text[2:]), 1) if text.startswith("TP") and text[2:].isdigit() else None
