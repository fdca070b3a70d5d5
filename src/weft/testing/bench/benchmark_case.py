"""A case of a benchmark and its result: a piece of work that eager, Inductor and Weft each do in their way.

A case is built once, then started by each contender, which gives a call without arguments. What the first calls
return is compared, since a fast wrong answer is no answer; `weft conform` and the model tests judge exactly.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from weft.runtime.record import recording
from weft.testing.bench.benchmark import (
    COMPILED,
    EAGER,
    EXACT,
    INDUCTOR,
    ONNX_RUNTIME,
    WEFT,
    Call,
    Contender,
    Limits,
    Progress,
    Race,
    Ratio,
    Timing,
    contenders,
    first_call,
    interleave,
    quantized_contenders,
    seconds_on_host,
)
from weft.testing.bench.compile_clock import compile_clock

Start = Callable[[Contender], Call]

CONTENDERS = (EAGER, INDUCTOR, ONNX_RUNTIME, COMPILED, WEFT)
SOMETIMES = (ONNX_RUNTIME, COMPILED)
"""Those that take part in some suites only."""

# Far above rounding in any case here, far below what a mistake makes.
ALLOWED_ERROR = 1e-3
LEAST_COSINE = 0.999


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work. `frozen` makes weights constants for both compilers; Weft is judged against the `peers`.

    `exported` work is a module that takes tensors: ONNX Runtime does it, too, where it is installed.
    """

    suite: str
    name: str
    build: Callable[[], Start]
    training: bool = False
    frozen: bool = False
    peers: tuple[str, ...] = (EAGER, INDUCTOR)
    exported: bool = False
    quantize: str = ""
    """How Weft is quantized, in a case in which it runs against itself; results are then judged by their cosine."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went: times, seconds inside the compilers' backends, and who computed something else than eager."""

    suite: str
    name: str
    race: Race
    backend_seconds: dict[str, float] = field(default_factory=dict[str, float])
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    uncompiled: str | None = None
    """Why Weft left a whole graph to torch, if it did."""
    fallbacks: int = 0
    """The calls that Weft left to torch."""
    cosine: float | None = None
    """Of a quantized program's results to those in f32."""
    errors_of_float64: dict[str, float] = field(default_factory=dict[str, float])
    """How far each is from the same in float64, as a share of the largest value, where that was computed."""

    @property
    def ratio(self) -> Ratio | None:
        """How many times as fast as its best peer Weft is."""
        return self.race.ratio

    @property
    def ok(self) -> bool:
        """Weft compiled, ran and agrees with eager; what its peers do is their matter."""
        return WEFT not in self.wrong and WEFT not in self.race.failures and self.uncompiled is None

    @property
    def trouble(self) -> str:
        """What went wrong, with whom."""
        found = [f"{name} failed: {what}" for name, what in self.race.failures.items()]
        found += [f"{name} {what}" for name, what in self.wrong.items()]
        return "; ".join([*found, f"weft left a graph to torch: {self.uncompiled}"] if self.uncompiled else found)

    def figures(self) -> dict[str, Any]:
        """The result as plain data; seconds, and null for who is missing."""
        race, ratio = self.race, self.ratio
        there = (name for name in CONTENDERS if name != COMPILED or name in race.timings)
        names = dict.fromkeys((*there, *race.peers))
        medians = {name: race.timings[name].median if name in race.timings else None for name in names}
        return {
            "suite": self.suite,
            "name": self.name,
            **medians,
            "ratio": ratio and ratio.median,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "peer": race.best_peer,
            "spread": {name: timing.spread for name, timing in race.timings.items()},
            "rounds": max((len(timing.seconds) for timing in race.timings.values()), default=0),
            "backend_seconds": self.backend_seconds,
            "first_call": race.first_calls,
            "failures": race.failures,
            "wrong": self.wrong,
            "uncompiled": self.uncompiled,
            "fallbacks": self.fallbacks,
            "cosine": self.cosine,
            "errors_of_float64": self.errors_of_float64,
        }

    def record(self) -> dict[str, Any]:
        """All of it as plain data, for a journal."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> CaseResult:
        """What `record` was made of."""
        race = dict(record["race"])
        timings = {name: Timing(tuple(each["seconds"])) for name, each in race.pop("timings").items()}
        peers = tuple(race.pop("peers"))
        given: dict[str, Any] = {**record, "race": Race(timings, **race, peers=peers)}
        return cls(**given)


@dataclass
class Started:
    """Contenders after their first calls: how to call them, what they returned, and seconds inside the backends."""

    race: Race
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    outputs: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    backend_seconds: dict[str, float] = field(default_factory=dict[str, float])

    def first_call_of(self, contender: Contender, start: Start, progress: Progress | None) -> None:
        """Let a contender compile and make its first call; a failure is noted in the race."""
        if progress is not None:
            progress(f"{contender.name}'s first call")

        def begin() -> None:
            self.calls[contender.name] = call = start(contender)
            self.outputs[contender.name] = snapshot(call())

        with compile_clock() as clock:
            first_call(self.race, contender.name, begin)
        if clock.graphs:
            self.backend_seconds[contender.name] = clock.seconds

    @property
    def able(self) -> dict[str, Call]:
        """The calls of those that did not fail."""
        return {name: self.calls[name] for name in self.race.first_calls}


def run_case(
    case: Case,
    limits: Limits | None = None,
    progress: Progress | None = None,
    seconds_of: Callable[[Call], float] = seconds_on_host,
) -> CaseResult:
    """Build the case, let each contender make its first call, compare what they return, and measure them in turns."""
    torch.compiler.reset()
    gc.collect()  # a case holds up to a gigabyte; what the last one held goes first
    started = Started(Race(peers=case.peers))
    with torch.set_grad_enabled(case.training), recording() as records:
        start = case.build()
        plain = contenders(frozen=case.frozen, exported=case.exported)
        for contender in quantized_contenders(case.quantize) if case.quantize else plain:
            started.first_call_of(contender, start, progress)
        cosine = _cosine(started.outputs) if case.quantize else None
        wrong = disagreements(started.outputs)
        if cosine is not None and not cosine >= LEAST_COSINE:
            wrong[WEFT] = f"has a cosine of {cosine:.5f} to f32, which is less than {LEAST_COSINE}"
        started.outputs.clear()
        race = interleave(started.able, limits, progress, started.race, seconds_of)
    uncompiled = next((record.error for record in records if record.error is not None), None)
    fallbacks = sum(len(record.fallbacks) for record in records)
    return CaseResult(case.suite, case.name, race, started.backend_seconds, wrong, uncompiled, fallbacks, cosine)


def _cosine(outputs: dict[str, list[Tensor]]) -> float | None:
    """The cosine of all results to those in f32."""
    if EXACT not in outputs or WEFT not in outputs:
        return None
    mine, theirs = (torch.cat([leaf.double().flatten() for leaf in outputs[name]]) for name in (WEFT, EXACT))
    return torch.nn.functional.cosine_similarity(mine, theirs, dim=0).item()


def snapshot(output: Any) -> list[Tensor]:
    """Copies of the floating-point tensors that a call returned."""
    leaves = pytree.tree_leaves(output)
    return [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def disagreements(
    outputs: dict[str, list[Tensor]], allowed: float = ALLOWED_ERROR, judge: str = EAGER
) -> dict[str, str]:
    """Who returned something else than the `judge`."""
    expected = outputs.get(judge)
    if expected is None:
        return {}
    wrong: dict[str, str] = {}
    for name, found in outputs.items():
        if [leaf.shape for leaf in found] != [leaf.shape for leaf in expected]:
            wrong[name] = f"results have other shapes than {judge}'s"
            continue
        pairs = zip(found, expected, strict=True)
        error = max((_error(mine, theirs) for mine, theirs in pairs), default=0.0)
        if not error <= allowed:
            wrong[name] = f"differs from {judge} by {error:.1e} of the largest value"
    return wrong


def _error(mine: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value, in the dtype itself: results may be of 64 MB and more."""
    if not torch.equal(torch.isfinite(mine), torch.isfinite(theirs)):
        return float("inf")
    difference = torch.nan_to_num(mine - theirs).abs().max() if mine.numel() else torch.zeros(())
    largest = torch.nan_to_num(theirs, posinf=0.0, neginf=0.0).abs().max() if mine.numel() else torch.ones(())
    return (difference / largest.clamp_min(1e-30)).item()
