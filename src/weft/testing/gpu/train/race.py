"""The race of the suite `train`: a process for each contender, all alive at once, which take turns on one device.

So each has its memory for itself, one that runs out of it ends alone, and times are still those of interleaved samples.
First steps are taken one after the other, so that nobody's compilation is disturbed.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from weft.testing.bench.benchmark import EAGER, INDUCTOR, WEFT, Race, Timing
from weft.testing.child import Child
from weft.testing.gpu.case import figures_of
from weft.testing.gpu.peers import MAX_AUTOTUNE
from weft.testing.gpu.train.models import TrainCase

LEAST_ROUNDS = 3
SAMPLE_LIMIT = 120.0
LOSS_ALLOWED = 2e-2
"""How far the mean loss of the second half may lie from eager's, as a share of it: dropout draws other numbers."""


@dataclass(frozen=True)
class TrainSetting:
    """How a race is run: where, how long, for how many steps losses are kept, and with whom."""

    device: str
    shrink: int
    rounds: int
    seconds: float
    steps: int
    profile: bool
    search: bool
    limit: float


@dataclass
class _Field:
    """The contenders that are still in it, and what they have said."""

    children: dict[str, Child]
    found: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def ask(self, name: str, request: dict[str, Any], limit: float) -> dict[str, Any] | None:
        """The contender's answer; None, noted as a failure, where it has none."""
        child = self.children[name]
        child.send(request)
        answer = child.receive(limit)
        error = child.epitaph(limit) if answer is None else answer.get("error")
        if error is not None:
            self.failures[name] = error
            self.children.pop(name).stop()
            return None
        return answer


def train_row(case: TrainCase, setting: TrainSetting) -> dict[str, Any]:
    """The row of a case, as plain data."""
    start = time.perf_counter()
    names = contender_names(case, setting)
    place = {"device": setting.device, "shrink": setting.shrink}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child("weft.testing.gpu.train.child", {**place, "contender": name}))
            for name in names
        }
        everyone = _Field(children)
        with ThreadPoolExecutor(len(names)) as pool:
            for name in names:
                pool.submit(everyone.ask, name, {"do": "load"}, setting.limit)
        begin = {"do": "begin", "case": case.name, "steps": setting.steps, "profile": setting.profile}
        for name in list(everyone.children):
            answer = everyone.ask(name, begin, setting.limit)
            if answer is not None:
                everyone.found[name] = answer
        _take_turns(everyone, setting)
    return _row(case, setting, everyone, tuple(name for name in names if name != WEFT), time.perf_counter() - start)


def contender_names(case: TrainCase, setting: TrainSetting) -> list[str]:
    """Weft stands before those that take long to begin. A rehearsal goes without Inductor."""
    if setting.device == "cpu":
        return [EAGER, WEFT]
    return [EAGER, WEFT, INDUCTOR, *([MAX_AUTOTUNE] if setting.search and case.searched else [])]


def _take_turns(everyone: _Field, setting: TrainSetting) -> None:
    """Rounds of samples, in an order that turns, until the time is over."""
    start = time.perf_counter()
    for number in range(setting.rounds):
        if number >= min(LEAST_ROUNDS, setting.rounds) and time.perf_counter() - start > setting.seconds:
            break
        names = list(everyone.children)
        shift = number % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            answer = everyone.ask(name, {"do": "sample"}, SAMPLE_LIMIT)
            if answer is not None:
                everyone.samples.setdefault(name, []).append(answer["seconds"])


def _row(
    case: TrainCase, setting: TrainSetting, everyone: _Field, peers: tuple[str, ...], took: float
) -> dict[str, Any]:
    found = everyone.found
    race = Race(peers=peers, failures=everyone.failures)
    race.first_calls.update({name: each["first_call"] for name, each in found.items()})
    race.timings.update({name: Timing(tuple(everyone.samples[name])) for name in everyone.children})
    losses = {name: each["losses"] for name, each in found.items()}
    wrong = wrong_losses(losses)
    mine = found.get(WEFT, {})
    uncompiled = mine.get("uncompiled")
    return {
        "suite": case.suite,
        "name": case.name,
        **figures_of(race, lambda seconds: seconds * 1e3),
        "unit": "ms",
        "share_of_limit": None,
        "backend_seconds": {name: s for each in found.values() for name, s in each["backend_seconds"].items()},
        "wrong": wrong,
        "left_out": {} if setting.search or not case.searched else {MAX_AUTOTUNE: "without --search"},
        "kernels": mine.get("kernels", 0),
        "claims": mine.get("claims", []),
        "fallbacks": mine.get("fallbacks", []),
        "uncompiled": uncompiled,
        "peak": {name: each["peak"] for name, each in found.items()},
        "losses": losses,
        "profile": {name: each["profile"] for name, each in found.items() if each["profile"]},
        "took": took,
        "ok": WEFT in race.timings and WEFT not in wrong and uncompiled is None,
    }


def wrong_losses(losses: dict[str, list[float]]) -> dict[str, str]:
    """Whose losses are not those of eager, by the mean of the second half of the steps."""
    if EAGER not in losses:
        return {}
    means = {name: statistics.fmean(each[len(each) // 2 :]) for name, each in losses.items()}
    apart = {name: abs(mean / means[EAGER] - 1) for name, mean in means.items()}
    far = {name: share for name, share in apart.items() if not share <= LOSS_ALLOWED}
    return {name: f"has losses that lie {share:.1%} from eager's" for name, share in far.items()}
