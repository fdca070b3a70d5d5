"""Every ordered pair of transformations of every op of the registry, judged in float64 by the reference.

`weft conform transforms` runs this. Derivatives are held against finite differences, batches against loops, and what
has fewer digits against what has all (`testing.transform_checks`). A pair that does not exist has a reason.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.errors import UnsupportedError, WeftError
from weft.ops.base import OpSpec
from weft.testing.transform_checks import CHECKS, DERIVATIVES, Drawn, OpSample, check_pair, is_differentiable

Status = Literal["right", "wrong", "excluded"]
_RULES = {"vjp": "vjp", "jvp": "vjp", "vmap": "batch"}
"""The rules of an op that transformations need; the others need none."""


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """What came of the second transformation of what the first has made of a sample."""

    sample: str
    first: str
    second: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class PairReport:
    """The verdicts on all pairs of some samples, and samples that have no float64."""

    verdicts: tuple[PairVerdict, ...]
    without: tuple[str, ...]
    seconds: float

    def having(self, status: Status) -> tuple[PairVerdict, ...]:
        return tuple(each for each in self.verdicts if each.status == status)

    def pairs(self) -> Counter[tuple[str, str]]:
        """How often each pair was right."""
        return Counter((each.first, each.second) for each in self.having("right"))

    def exclusions(self) -> Counter[str]:
        """Why pairs were left out, and how many for each reason."""
        return Counter(each.reason for each in self.having("excluded"))

    def to_json(self) -> dict[str, Any]:
        counts = {f"{first} then {second}": self.pairs()[first, second] for first, second in _all_pairs()}
        return {
            "samples": len({each.sample for each in self.verdicts}),
            "right": len(self.having("right")),
            "wrong": [f"{each.sample} {each.first} then {each.second}: {each.reason}" for each in self.having("wrong")],
            "excluded": dict(self.exclusions()),
            "without_float64": list(self.without),
            "pairs": counts,
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        figures = self.to_json()
        covered = sum(count > 0 for count in figures["pairs"].values())
        return (
            f"{figures['samples']:,} samples, {covered} of {len(figures['pairs'])} pairs: {figures['right']:,} right, "
            f"{len(figures['wrong'])} wrong, {len(self.having('excluded')):,} excluded in {self.seconds:.0f} s"
        )


def _all_pairs() -> list[tuple[str, str]]:
    return list(itertools.product(CHECKS, CHECKS))


def run_pairs(samples: Sequence[OpSample], on_sample: Callable[[str], None] | None = None) -> PairReport:
    """Judge all pairs of each sample."""
    start, found, without = time.perf_counter(), list[PairVerdict](), list[str]()
    for sample in samples:
        if on_sample is not None:
            on_sample(sample.name)
        drawn = sample.drawn()
        if drawn is None:
            without.append(sample.name)
        else:
            found += judge_pairs(sample, drawn)
    return PairReport(tuple(found), tuple(without), time.perf_counter() - start)


def judge_pairs(sample: OpSample, drawn: Drawn) -> Iterator[PairVerdict]:
    """The verdicts on all pairs of one sample."""
    for first in CHECKS:
        made = _first(sample, drawn, first)
        for second in CHECKS:
            if isinstance(made, PairVerdict):
                yield PairVerdict(sample.name, first, second, made.status, made.reason)
                continue
            reason = _excluded(sample.spec, second, made)
            try:
                if not reason:
                    check_pair(first, second, drawn, made)
            except (AssertionError, WeftError) as error:
                yield PairVerdict(sample.name, first, second, "wrong", _line(error))
            else:
                yield PairVerdict(sample.name, first, second, "excluded" if reason else "right", reason)


def _first(sample: OpSample, drawn: Drawn, name: str) -> Drawn | PairVerdict:
    """What a transformation makes of a sample, checked; or why there is none."""
    reason = _excluded(sample.spec, name, drawn)
    try:
        if not reason:
            return CHECKS[name](*drawn)
        if is_lacking(sample.spec, name) and (name not in DERIVATIVES or is_differentiable(drawn[0])):
            CHECKS[name](*drawn)
            return PairVerdict(sample.name, name, "", "wrong", f"{reason}, but it has a result")
    except UnsupportedError as error:
        if not reason or "rule: " not in error.message:
            return PairVerdict(sample.name, name, "", "wrong", _line(error))
    except (AssertionError, WeftError) as error:
        return PairVerdict(sample.name, name, "", "wrong", _line(error))
    return PairVerdict(sample.name, name, "", "excluded", reason)


def is_lacking(spec: OpSpec, transformation: str) -> bool:
    """Whether an op says that it has no rule for a transformation."""
    return _RULES.get(transformation) in spec.cls.NO_RULE


def _excluded(spec: OpSpec, name: str, made: Drawn) -> str:
    """Why a function has no such transformation; empty where it has."""
    if name in DERIVATIVES and not is_differentiable(made[0]):
        return "nothing to differentiate: no argument or no result of floats"
    if is_lacking(spec, name):
        return f"{spec.name} has no {_RULES[name]} rule: {spec.cls.NO_RULE[_RULES[name]]}"
    return ""


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]
