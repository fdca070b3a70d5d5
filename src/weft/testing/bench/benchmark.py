"""Interleaved measurement of eager, Inductor, ONNX Runtime and Weft in one process: for the demo and `weft bench`.

Only ratios inside one run count: machines drift, and share their caches and clocks with others. So contenders take
turns, a sample each a round, and a ratio is the median of the rounds' own ratios, with a 95% interval by bootstrap.
A contender that fails to compile or to run is reported with its error and the others are measured without it.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import shutil
import statistics
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.testing.bench.onnx_session import missing_packages

Call = Callable[[], Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Progress = Callable[[str], None]

EAGER, INDUCTOR, ONNX_RUNTIME, WEFT = "eager", "inductor", "onnxruntime", "weft"
COMPILED = "torch.func by weft"
"""Transformations of torch's, compiled by Weft: beside `weft.func`, which has its own."""
EXACT = "weft f32"
"""Weft without quantization, which is what a quantized program is judged against."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to measure: `rounds` of samples, fewer (but `least`) when they would take more than `seconds`.

    A sample is as many calls as take `sample_seconds`, so that a clock's resolution and a cold cache do not count.
    """

    rounds: int = 40
    least: int = 7
    seconds: float = 10.0
    sample_seconds: float = 2e-3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one contender: a sample for each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the samples lie between the two."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, and the interval that holds it with 95% confidence."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def paired_ratio(numerator: Timing, denominator: Timing) -> Ratio:
    """How many times as long the one takes as the other, round by round."""
    ratios = np.divide(numerator.seconds, denominator.seconds)
    # The seed is fixed: the same samples always give the same interval.
    picks = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run a function: its name, and what makes the function run that way."""

    name: str
    compile: Compile


@dataclass(slots=True)
class Race:
    """The contenders of one piece of work: how they did, how long their first call took, and who failed and why."""

    timings: dict[str, Timing] = field(default_factory=dict[str, Timing])
    first_calls: dict[str, float] = field(default_factory=dict[str, float])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    peers: tuple[str, ...] = (EAGER, INDUCTOR)

    @property
    def best_peer(self) -> str | None:
        """The fastest of those that Weft is judged against."""
        peers = {name: timing.median for name, timing in self.timings.items() if name in self.peers}
        return min(peers, key=peers.__getitem__, default=None)

    @property
    def ratio(self) -> Ratio | None:
        """How many times as fast as its best peer Weft is; None where one of the two is missing."""
        peer = self.best_peer
        if peer is None or WEFT not in self.timings:
            return None
        return paired_ratio(self.timings[peer], self.timings[WEFT])


def cpp_compiler() -> str | None:
    """The C++ compiler that Inductor would use: `$CXX`, else g++; None where there is none."""
    return shutil.which(os.environ.get("CXX") or "g++")


def contenders(
    *, frozen: bool = False, dynamic: bool | None = None, cached: bool = False, exported: bool = False
) -> list[Contender]:
    """Eager, Inductor (where there is a C++ compiler) and Weft; `frozen` makes weights constants for both compilers.

    `exported` adds ONNX Runtime, where it is installed: it takes modules whose arguments are tensors.

    Without `cached`, Weft leaves its disk cache alone; Inductor's is governed by its environment variables.
    """

    # Imported here and below: taking turns needs no framework.
    import torch

    from weft.testing.bench.onnx_runtime import in_onnx_runtime

    def inductor(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] | None = {"freezing": True} if frozen else None
        return torch.compile(function, backend="inductor", dynamic=dynamic, options=options)

    def weft(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"cache": cached, **({"freeze": True} if frozen else {})}
        return torch.compile(function, backend="weft", dynamic=dynamic, options=options)

    found = [Contender(EAGER, lambda function: function)]
    if cpp_compiler() is not None:
        found.append(Contender(INDUCTOR, inductor))
    if exported and not missing_packages():
        found.append(Contender(ONNX_RUNTIME, in_onnx_runtime))
    return [*found, Contender(WEFT, weft)]


def quantized_contenders(quantize: str) -> list[Contender]:
    """Weft in f32 and Weft quantized, weights frozen for both."""

    import torch

    def compiled(**options: Any) -> Compile:
        given = {"cache": False, "freeze": True, **options}
        return lambda function: torch.compile(function, backend="weft", options=given)

    return [Contender(EXACT, compiled()), Contender(WEFT, compiled(quantize=quantize))]


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a plain function with code of its own: Dynamo keeps what it compiles by code, for all backends."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name=function.__code__.co_name)
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def first_call(race: Race, name: str, call: Call) -> bool:
    """Make the call that compiles, note how long it took or how it failed, and say whether it can go on."""
    begin = time.perf_counter()
    # A peer may fail in any way; that is part of the report.
    try:
        call()
    except Exception as error:
        race.failures[name] = describe(error)
        return False
    race.first_calls[name] = time.perf_counter() - begin
    return True


def seconds_on_host(call: Call) -> float:
    """How long a call takes, by the host's clock."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def processor_seconds(call: Call) -> float:
    """The time that all threads of this process work in a call: others on the machine hardly change it."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def interleave(
    calls: Mapping[str, Call],
    limits: Limits | None = None,
    progress: Progress | None = None,
    race: Race | None = None,
    seconds_of: Callable[[Call], float] = seconds_on_host,
) -> Race:
    """Measure the calls in turns, each by `seconds_of`. Each is called before, so that compiling is not measured.

    A `race` in which some have made their first call already goes on from there.
    """
    race, limits = race or Race(), limits or Limits()
    counts: dict[str, int] = {}
    per_round = 0.0
    for name, call in calls.items():
        if name not in race.first_calls:
            if progress is not None:
                progress(f"{name}'s first call")
            if not first_call(race, name, call):
                continue
        try:
            took = min(_sample(call, 1, seconds_of) for _ in range(3))
        except Exception as error:
            race.failures[name] = describe(error)
            continue
        counts[name] = max(1, int(np.ceil(limits.sample_seconds / max(took, 1e-7))))
        per_round += took * counts[name]
    rounds = max(limits.least, min(limits.rounds, int(limits.seconds / max(per_round, 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in counts}
    names = list(counts)
    for number in range(rounds):
        if progress is not None:
            progress(f"round {number + 1} of {rounds}")
        # The order turns, so that nobody always runs behind the same neighbour.
        shift = number % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            try:
                samples[name].append(_sample(calls[name], counts[name], seconds_of))
            except Exception as error:
                race.failures[name] = describe(error)
        names = [name for name in names if name not in race.failures]
    race.timings.update({name: Timing(tuple(samples[name])) for name in names})
    return race


def _sample(call: Call, count: int, seconds_of: Callable[[Call], float]) -> float:
    def several() -> None:
        for _ in range(count):
            call()

    return seconds_of(call) if count == 1 else seconds_of(several) / count


def describe(error: BaseException) -> str:
    """The error in a line; for one that Dynamo wraps, that of the backend."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, BaseException):
        return describe(inner)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else '(no message)'}"[:300]
