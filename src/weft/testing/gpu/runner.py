"""Runs the cases of a GPU benchmark in child processes, one at a time, within a time, and keeps a journal of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from weft.testing.bench.bytecode import write_bytecode
from weft.testing.child import START_LIMIT, Child
from weft.testing.conformance.journal import Journal
from weft.testing.gpu.case import GpuCase
from weft.testing.gpu.train.models import TrainCase
from weft.testing.gpu.train.race import TrainSetting, train_row

CASE_LIMIT = 400.0

OnRow = Callable[[dict[str, Any], int, int], None]


@dataclass(frozen=True)
class Setting:
    """How cases run: where, how much smaller, how long. `budget` is the time after which no case is begun; without
    `search`, peers that try many kernels are left out. `steps` and `profile` are for training: whose losses are kept,
    and whether kernels are listed by time."""

    device: str = "cuda"
    shrink: int = 1
    rounds: int = 60
    seconds: float = 4.0
    budget: float = 420.0
    case_limit: float = CASE_LIMIT
    search: bool = True
    steps: int = 20
    profile: bool = False


@dataclass
class Outcome:
    """What a run gave: the device, the rows that are new, and the cases for which there was no time."""

    about: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    not_begun: list[str] = field(default_factory=list[str])


def key(case: GpuCase | TrainCase) -> str:
    return f"{case.suite}/{case.name}"


def run_cases(
    cases: Sequence[GpuCase | TrainCase], setting: Setting, journal: Journal, on_row: OnRow | None = None
) -> Outcome:
    """Run the cases that the journal does not have, until the budget is spent."""
    begin = time.perf_counter()
    done = journal.results()
    waiting = [case for case in cases if key(case) not in done]
    settings = {
        "device": setting.device,
        "shrink": setting.shrink,
        "rounds": setting.rounds,
        "seconds": setting.seconds,
    }
    write_bytecode()
    with ExitStack() as stack:
        child = stack.enter_context(Child("weft.testing.gpu.child", settings))
        outcome = Outcome(_about(child))
        for number, case in enumerate(waiting, 1):
            if time.perf_counter() - begin > setting.budget:
                outcome.not_begun = [key(each) for each in waiting[number - 1 :]]
                break
            if isinstance(case, TrainCase):
                child.stop()  # its context would count as memory in use
                row = train_row(case, _for_training(setting))
            else:
                row = _row(child, case, setting)
            journal.add(key(case), row)
            outcome.rows.append(row)
            if on_row is not None:
                on_row(row, number, len(waiting))
    return outcome


def _for_training(setting: Setting) -> TrainSetting:
    return TrainSetting(
        setting.device,
        setting.shrink,
        setting.rounds,
        setting.seconds,
        setting.steps,
        setting.profile,
        setting.search,
        setting.case_limit,
    )


def _about(child: Child) -> dict[str, Any]:
    child.send({"about": True})
    answer = child.receive(START_LIMIT)
    return {} if answer is None else answer["about"]


def _row(child: Child, case: GpuCase, setting: Setting) -> dict[str, Any]:
    """The row of a case; one that takes too long is run again without the peers that try many kernels."""
    reason, limit = "", setting.case_limit
    for thorough in (True, False) if setting.search else (False,):
        child.send({"suite": case.suite, "case": case.name, "thorough": thorough})
        answer = child.receive(limit)
        if answer is not None:
            return answer["row"]
        timed_out, reason = child.timed_out, child.epitaph(limit)
        if not timed_out:
            break
    return {"suite": case.suite, "name": case.name, "ok": False, "error": reason}
