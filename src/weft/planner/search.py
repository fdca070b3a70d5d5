"""The search: every mapping that divides and fits, in closed form, and the front of them.

Within a replica ranks of tensor and expert parallelism stay in one NVLink domain. What binds a choice, and what else
there was, is kept with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.planner.calibration import Calibration, Run, scaled
from weft.planner.capacity import CACHE_RULES, Memory, memory, resident
from weft.planner.closed_form import Batching, Draft, Service, serve
from weft.planner.errors import CalibrationError, CapacityError
from weft.planner.formats import held
from weft.planner.hardware import Gpu, catalogue
from weft.planner.mapping import Mapping, fits_heads, rank_program
from weft.planner.model import Model
from weft.planner.op_costs import OpCosts
from weft.planner.program import RankProgram
from weft.planner.step_costs import StepCosts, step_costs
from weft.planner.tables import KernelTables, checked_folder
from weft.planner.traffic import Targets, Traffic

CONCURRENCIES = np.unique(np.rint(2.0 ** np.arange(0, 11.01, 0.25)).astype(int)).astype(float)
ENGINES = {
    "vllm": {"mixed": True, "reserve": False, "ahead": True},
    "trtllm": {"mixed": True, "reserve": True, "ahead": True},
    "sglang": {"mixed": False, "reserve": True, "ahead": True},
    "weft": {"mixed": True, "reserve": False},
}
"""How engines schedule by default: prompts along with decoding or before it, the cache promised or taken as it goes,
and the next step prepared while one runs."""


@dataclass(frozen=True)
class Settings:
    """What a plan is made under."""

    engine: str = "weft"
    kv: str = "bfloat16"
    chunk: int = 8192
    fraction: float = 0.9
    draft: Draft = field(default_factory=Draft)
    max_gpus: int = 64
    """GPUs of one replica, at most."""
    spare: int = 1
    """Replicas beyond what the load needs, so that the service stands when one fails."""
    calibration: Calibration | None = None
    """Factors from runs of the user's own."""


@dataclass(frozen=True)
class Candidate:
    """One mapping, priced."""

    mapping: Mapping
    program: RankProgram
    memory: Memory
    costs: StepCosts
    fits: int
    service: Service


@dataclass(frozen=True)
class Point:
    """A mapping at one concurrency."""

    candidate: Candidate
    index: int

    def figure(self, name: str) -> float:
        return float(getattr(self.candidate.service, name)[self.index])

    @property
    def per_gpu(self) -> float:
        return self.figure("rate") / self.candidate.mapping.gpus

    @property
    def per_user(self) -> float:
        return 1.0 / self.figure("tpot")


def open_costs(gpu: Gpu, tables: Path | None, engine: str) -> OpCosts:
    """Costs from a folder of tables, or from those that come with Weft.

    Weft's own are of random numbers; public ones have matmuls in bf16 that are faster than a GPU keeps up on these."""
    own = Path(__file__).parent / "data" / "kernel_tables"
    folder = own if tables is None else checked_folder(tables)
    system = gpu.tables if (folder / gpu.tables).is_dir() else next(iter(KernelTables.systems(folder)), "h200_sxm")
    reference = next((each for each in catalogue().values() if each.measured and each.tables == system), gpu)
    found = KernelTables(folder, system, engine)
    if "gemm" not in found.files and found.siblings:
        found = found.siblings[0]
    return OpCosts(gpu, found if found.files else None, reference, sustained=folder != own)


def mappings(model: Model, gpu: Gpu, most: int) -> Iterator[Mapping]:
    """Every way to divide a replica: tensor, pipeline, and of experts expert and data-parallel attention."""
    powers = [2**each for each in range(11) if 2**each <= most]
    sizes = whole_nodes(gpu, most)
    for tp in sizes:
        if tp > gpu.nvlink_domain:
            continue
        for pp in powers:
            if tp * pp > most or pp > model.depth or (pp > 1 and tp < min(gpu.nvlink_domain, 8) and pp > 2):
                continue
            if not model.has_experts:
                yield Mapping(tp, pp)
                continue
            for ep in [each for each in sizes if tp % each == 0]:
                yield Mapping(tp, pp, 1, tp // ep, ep)
    if model.has_experts:
        for dp in sizes[1:]:
            yield Mapping(1, 1, dp, 1, dp)


def whole_nodes(gpu: Gpu, most: int) -> list[int]:
    """Numbers of ranks that fill nodes without a rest: what divides a node; nodes by powers of two, or that a domain
    divides into."""
    node, domain = gpu.gpus_per_node, max(gpu.nvlink_domain, gpu.gpus_per_node)
    inside = [each for each in range(1, min(node, most) + 1) if node % each == 0]
    beyond = [node * 2**each for each in range(1, 11)]
    beyond += [each for each in range(2 * node, domain + 1, node) if domain % each == 0]
    return sorted({*inside, *(each for each in beyond if each <= most)})


def candidates(
    model: Model, gpu: Gpu, costs: OpCosts, traffic: Traffic, settings: Settings
) -> tuple[list[Candidate], list[tuple[Mapping, Memory]]]:
    """What fits, priced; and what does not, with its memory."""
    kv_bytes = 1.0 if settings.kv == "fp8" else 2.0
    fitting: list[Candidate] = []
    failing: list[tuple[Mapping, Memory]] = []
    length = traffic.isl + traffic.osl
    for mapping in mappings(model, gpu, settings.max_gpus):
        if not fits_heads(model, mapping):
            continue
        program = rank_program(model, mapping, kv_bytes)
        rule = CACHE_RULES.get(settings.engine)
        room = memory(model, program, mapping, gpu, settings.chunk, settings.fraction, rule)
        count = resident(room, program, mapping, length, rule)
        if room.cache <= 0 or count < 1:
            failing.append((mapping, room))
            continue
        priced = priced_steps(program, costs, settings)
        service = served(priced, mapping, traffic, settings, count)
        fitting.append(Candidate(mapping, program, room, priced, count, service))
    return fitting, failing


def priced_steps(program: RankProgram, costs: OpCosts, settings: Settings) -> StepCosts:
    """A mapping's times of steps, calibrated where there is something to calibrate with."""
    found = step_costs(program, costs, settings.kv)
    return found if settings.calibration is None else settings.calibration.apply(found)


def predictor(model: Model, gpu: Gpu, costs: OpCosts, settings: Settings) -> Callable[[Run, float, float], Any]:
    """TPOT and TTFT of measured runs in closed form, with factors on the times of steps; mappings are priced once."""
    kept: dict[Mapping, tuple[RankProgram, StepCosts, Memory]] = {}
    model = held(model, gpu, settings.kv)
    rule = CACHE_RULES.get(settings.engine)

    def predict(run: Run, few: float, many: float) -> tuple[float, float]:
        if run.mapping not in kept:
            if not fits_heads(model, run.mapping):
                raise CalibrationError(f"a run's mapping, {run.mapping}, does not divide {model.name}")
            program = rank_program(model, run.mapping, 1.0 if settings.kv == "fp8" else 2.0)
            room = memory(model, program, run.mapping, gpu, settings.chunk, settings.fraction, rule)
            kept[run.mapping] = program, step_costs(program, costs, settings.kv), room
        program, priced, room = kept[run.mapping]
        fits = resident(room, program, run.mapping, run.isl + run.osl, rule)
        if fits < 1:
            raise CalibrationError(
                f"a run's mapping, {run.mapping}, has no room for one request of {model.name} on {gpu.device}",
                hint="the runs have to be of the model, precision and GPU that are planned",
            )
        mixed = bool(ENGINES[settings.engine].get("mixed", True))
        batching = Batching(float(settings.chunk * run.mapping.dp), mixed)
        told = serve(scaled(priced, few, many), run.isl, run.osl, run.concurrency, fits, batching=batching)
        return float(told.tpot), float(told.ttft)

    return predict


def served(
    costs: StepCosts, mapping: Mapping, traffic: Traffic, settings: Settings, fits: int, *, isl: float | None = None
) -> Service:
    """A mapping over all concurrencies, under what a plan is made under; `isl` in place of the traffic's."""
    batching = Batching(float(settings.chunk * mapping.dp), bool(ENGINES[settings.engine].get("mixed", True)))
    return serve(
        costs, traffic.isl if isl is None else isl, traffic.osl, CONCURRENCIES, fits,
        prefix=traffic.prefix if isl is None else 0.0, draft=settings.draft, batching=batching,
    )  # fmt: skip


def refuse(model: Model, gpu: Gpu, failing: Sequence[tuple[Mapping, Memory]], settings: Settings) -> CapacityError:
    """Nothing fits: by how much, and what would."""
    mapping, room = max(failing, key=lambda each: (each[1].cache_tokens if each[1].cache > 0 else 0, each[1].cache))
    lacking = -room.cache / 1e9
    total = room.weights * mapping.gpus
    larger = [
        each.name for each in catalogue().values() if each.memory * settings.fraction * mapping.gpus > total * 1.1
    ]
    advice = [f"more GPUs for a replica (now at most {settings.max_gpus})"]
    advice += [f"a GPU with more memory ({', '.join(larger)})"] if larger else []
    advice += ["weights of fewer bits (--precision fp8)"] if model.weights == "bf16" else []
    what = f"lacks {lacking:.1f} GB on each GPU"
    if lacking <= 0:
        what = f"leaves room for {room.cache_tokens:,} tokens of cache, which one request is longer than"
        advice = ["shorter requests (isl, osl)", *advice[:1], "a cache of fewer bits (--kv fp8)"]
    return CapacityError(
        f"{model.name} does not fit on {gpu.device}: the roomiest mapping, {mapping}, {what}", hint="; or ".join(advice)
    )


def points(found: Sequence[Candidate]) -> list[Point]:
    return [
        Point(each, index) for each in found for index in range(len(CONCURRENCIES)) if CONCURRENCIES[index] <= each.fits
    ]


def front(found: Sequence[Point]) -> list[Point]:
    """The Pareto front: nobody has more tokens a second for a user and for a GPU both."""
    best: list[Point] = []
    for point in sorted(found, key=lambda each: (-each.per_user, -each.per_gpu)):
        if not best or point.per_gpu > best[-1].per_gpu * 1.0001:
            best.append(point)
    return best


def meets(point: Point, targets: Targets) -> bool:
    return point.figure("tpot") <= targets.tpot and point.figure("ttft") <= targets.ttft


def nearest(found: Sequence[Point], targets: Targets) -> Point:
    """Where no point meets both targets: the one that is least above them."""

    def above(point: Point) -> float:
        over = (point.figure("tpot") / targets.tpot, point.figure("ttft") / targets.ttft)
        return sum(max(each - 1.0, 0.0) for each in over if math.isfinite(each))

    return min(found, key=lambda each: (above(each), -each.per_gpu))
