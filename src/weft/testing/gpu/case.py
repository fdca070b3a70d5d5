"""A case of the GPU benchmark and its row: Weft and its peers on the same work, and a copy that moves the same bytes.

Contenders take turns, a sample each a round, as on the CPU; a sample is timed by the device, with the L2 flushed.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.runtime.record import CompilationRecord, recording
from weft.testing.bench.benchmark import (
    EAGER,
    INDUCTOR,
    WEFT,
    Call,
    Contender,
    Limits,
    Progress,
    Race,
    interleave,
    paired_ratio,
)
from weft.testing.bench.benchmark_case import Start, Started, disagreements
from weft.testing.devices import Device

COPY = "copy"
OWN = "weft own"
"""Weft where it may not choose a library."""
LIMITS = Limits(rounds=60, least=5, seconds=4.0, sample_seconds=0.0)
# A thorough contender (one that tries many kernels) starts only while a case has used less than this.
THOROUGH_BEFORE = 120.0

BF16_ERROR = 2e-2
F32_ERROR = 1e-3


@dataclass(frozen=True)
class Place:
    """Where a case lies, and how much smaller than meant it is: a rehearsal divides every size that may be divided."""

    device: Device
    shrink: int = 1

    def rows(self, count: int) -> int:
        return count if self.shrink == 1 else max(2, count // self.shrink)

    def size(self, count: int) -> int:
        """A size that products take: a multiple of 16."""
        return count if self.shrink == 1 else max(16, count // self.shrink // 16 * 16)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, device=self.device.name, dtype=dtype) * scale

    def integers(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, device=self.device.name)


@dataclass(frozen=True)
class Work:
    """What a case built: how a contender starts, and what the work amounts to.

    `amount` of what the unit counts (bytes, FLOPs, tokens) is done in a call; None makes the figure milliseconds.
    `allowed` is the largest difference from `judge`, as a share of the largest value; None for work that draws numbers.
    """

    start: Start
    peers: Sequence[Contender]
    unit: str = "ms"
    amount: float | None = None
    bytes: int = 0
    flops: int = 0
    speed: float = 1.0
    """How many times as fast as 16-bit floats the machine multiplies these."""
    allowed: float | None = BF16_ERROR
    judge: str = EAGER
    wall: bool = False
    """Timed as a caller waits for it, the host's part included."""
    graph: bool = False
    """Captured in a CUDA graph, which is what is timed."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Weft's, beside `cache`."""
    own: bool = False
    """Whether Weft's own kernels run, too, where it may choose a library's."""


@dataclass(frozen=True)
class GpuCase:
    """One piece of work. `training` lets gradients be taken."""

    suite: str
    name: str
    build: Callable[[Place], Work]
    training: bool = False


UNITS = {"TB/s": 1e12, "TFLOP/s": 1e12, "tokens/s": 1.0}


def weft_contender(options: dict[str, Any] | None = None, name: str = WEFT) -> Contender:
    settings: dict[str, Any] = {"cache": False, **(options or {})}
    return Contender(name, lambda function: torch.compile(function, backend="weft", options=settings))


def run_gpu_case(
    case: GpuCase,
    place: Place,
    limits: Limits = LIMITS,
    progress: Progress | None = None,
    *,
    thorough: bool = True,
) -> dict[str, Any]:
    """Build the case, let each contender make its first call, compare, measure in turns; the row as plain data."""
    begin = time.perf_counter()
    torch.compiler.reset()
    place.device.tidy()
    left_out: dict[str, str] = {}
    with torch.set_grad_enabled(case.training), recording() as records:
        torch.manual_seed(0)
        work = case.build(place)
        started = Started(Race(peers=tuple(peer.name for peer in work.peers)))
        for contender in _in_order(work):
            if is_thorough(contender) and (not thorough or time.perf_counter() - begin > THOROUGH_BEFORE):
                left_out[contender.name] = "there was no time for it"
                continue
            started.first_call_of(contender, _start(work, place.device), progress)
        chosen = list(records)
        if work.own:
            own = weft_contender({**work.options, "strict": True}, OWN)
            started.first_call_of(own, _start(work, place.device), progress)
        wrong = {} if work.allowed is None else disagreements(started.outputs, work.allowed, work.judge)
        started.outputs.clear()
        calls = dict(started.able)
        if work.bytes:
            calls[COPY] = _copy(place, work.bytes, graph=work.graph)
        seconds_of = place.device.wall_seconds if work.wall else place.device.kernel_seconds
        race = interleave(calls, limits, progress, started.race, seconds_of)
    row = _row(case, work, race, place.device.nominal_flops)
    found = {
        "backend_seconds": with_waiting(started.backend_seconds, chosen),
        "wrong": wrong,
        "left_out": left_out,
        **made(chosen),
        "took": time.perf_counter() - begin,
    }
    place.device.tidy()
    return {**row, **found, "ok": WEFT in race.timings and WEFT not in wrong and found["uncompiled"] is None}


def _in_order(work: Work) -> list[Contender]:
    """Libraries, then Weft, then other compilers: those that take long come last."""
    compilers = [peer for peer in work.peers if peer.name.startswith(INDUCTOR)]
    libraries = [peer for peer in work.peers if peer not in compilers]
    return [*libraries, weft_contender(work.options), *compilers]


def is_thorough(contender: Contender) -> bool:
    return "max-autotune" in contender.name


def _start(work: Work, device: Device) -> Start:
    """What starts a contender; where the case is a graph, what is called later is its replay."""
    return (lambda contender: device.captured(work.start(contender))) if work.graph else work.start


def _copy(place: Place, moved: int, *, graph: bool) -> Call:
    """A copy that reads half of the bytes and writes as many."""
    source = torch.empty(max(moved // 2, 1), dtype=torch.uint8, device=place.device.name)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return place.device.captured(copy) if graph else copy


def _row(case: GpuCase, work: Work, race: Race, nominal_flops: float | None) -> dict[str, Any]:
    medians = {name: timing.median for name, timing in race.timings.items()}
    own, peer = race.timings.get(OWN), race.timings.get(race.best_peer or "")
    return {
        "suite": case.suite,
        "name": case.name,
        **figures_of(race, lambda seconds: _figure(work, seconds)),
        "own_ratio": paired_ratio(peer, own).median if peer and own else None,
        "unit": work.unit,
        "share_of_limit": _share(work, medians.get(WEFT), medians.get(COPY), nominal_flops),
        "bytes": work.bytes,
        "flops": work.flops,
    }


def figures_of(race: Race, figure: Callable[[float], float]) -> dict[str, Any]:
    """What a race gave: Weft's figure and its best peer's, their ratio, and everybody's times and troubles."""
    medians = {name: timing.median for name, timing in race.timings.items()}
    peer, ratio = race.best_peer, race.ratio
    return {
        "weft": figure(medians[WEFT]) if WEFT in medians else None,
        "peer": figure(medians[peer]) if peer else None,
        "peer_name": peer,
        "ratio": ratio and ratio.median,
        "ratio_low": ratio and ratio.low,
        "ratio_high": ratio and ratio.high,
        "seconds": medians,
        "spread": {name: timing.spread for name, timing in race.timings.items()},
        "rounds": max((len(timing.seconds) for timing in race.timings.values()), default=0),
        "first_call": race.first_calls,
        "failures": race.failures,
    }


def _figure(work: Work, seconds: float) -> float:
    return seconds * 1e3 if work.amount is None else work.amount / seconds / UNITS[work.unit]


def _share(work: Work, mine: float | None, copy: float | None, nominal_flops: float | None) -> float | None:
    """The time that the machine's limit allows, as a share of what Weft takes."""
    if mine is None or (work.flops and nominal_flops is None):
        return None
    limits = [copy or 0.0, work.flops / (nominal_flops * work.speed) if work.flops and nominal_flops else 0.0]
    return max(limits) / mine if any(limits) else None


def with_waiting(backend_seconds: dict[str, float], records: Sequence[CompilationRecord]) -> dict[str, float]:
    """Seconds inside the backends; for Weft's also what its first calls waited for kernels that were not ready."""
    if WEFT not in backend_seconds:
        return backend_seconds
    waited = sum(record.seconds.get("first_call", 0.0) for record in records)
    return {**backend_seconds, WEFT: backend_seconds[WEFT] + waited}


def made(records: Sequence[CompilationRecord]) -> dict[str, Any]:
    """What Weft's code consists of: kernels count as generated only where no library has a part."""
    claims = [f"{claim.library}: {claim.op}" for record in records for claim in record.claims]
    return {
        "kernels": sum(record.launches for record in records),
        "claims": sorted(set(claims)),
        "fallbacks": sorted({fallback.target for record in records for fallback in record.fallbacks}),
        "uncompiled": next((record.error for record in records if record.error is not None), None),
    }
