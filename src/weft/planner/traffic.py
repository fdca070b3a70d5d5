"""What a service is asked for: lengths, rate or clients, shared prefixes; from words, or a trace in a file."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.planner.errors import TrafficError
from weft.planner.scheduler import Request


@dataclass(frozen=True)
class Traffic:
    """Requests of `isl` tokens in and `osl` out, `rate` of them a second over the whole service."""

    isl: float = 1024.0
    osl: float = 512.0
    rate: float = 0.0
    spread: float = 0.1
    """Lengths are drawn evenly from so much below to so much above the nominal ones."""
    prefix: float = 0.0
    """The share of a prompt's tokens that is found in the prefix cache."""
    burst: float = 1.0
    """Requests that arrive together, on average: 1 is a Poisson process."""
    trace: tuple[tuple[float, int, int], ...] = ()
    """(seconds, tokens in, tokens out) of each request of a trace."""

    def requests(self, rate: float, count: int, seed: int = 0) -> tuple[list[Request], list[float]]:
        """Requests with their arrivals at a rate; of a trace, its own, over and over, at its own times scaled to it.

        Of a longer trace these are the busiest ones in a row."""
        if self.trace:
            size, span = len(self.trace), self.trace[-1][0] - self.trace[0][0]
            # The trace comes round again after as long as its requests are apart on average.
            turn = span * size / max(size - 1, 1)
            scale = size / max(turn, _SHORTEST) / rate
            first = self._busiest(count)
            taken = [(index // size, *self.trace[index % size]) for index in range(first, first + count)]
            return (
                [Request(i, a, b, int(a * self.prefix)) for i, (_, _, a, b) in enumerate(taken)],
                [(when - taken[0][1] + turn * times) * scale for times, when, _, _ in taken],
            )
        draw = np.random.default_rng(seed)
        low, high = 1.0 - self.spread, 1.0 + self.spread
        prompts = np.maximum(np.rint(self.isl * draw.uniform(low, high, count)), 1).astype(int)
        outputs = np.maximum(np.rint(self.osl * draw.uniform(low, high, count)), 1).astype(int)
        groups = draw.exponential(self.burst / rate, count)
        starts = draw.random(count) < 1.0 / self.burst
        times = np.cumsum(np.where(starts, groups, 0.0))
        cached = (prompts * self.prefix).astype(int)
        return (
            [Request(i, int(prompts[i]), int(outputs[i]), int(cached[i])) for i in range(count)],
            [float(each) for each in times],
        )

    def _busiest(self, count: int) -> int:
        """Where so many requests of a trace begin that come in the shortest time."""
        if len(self.trace) <= count:
            return 0
        times = np.array([each[0] for each in self.trace])
        return int(np.argmin(times[count - 1 :] - times[: len(times) - count + 1]))

    def running(self, count: int, seed: int = 1) -> list[Request]:
        """What is in a replica at some moment: requests of which a part is given already, all of it in the cache.

        Long answers are met more often than they are asked for. Numbers are below zero."""
        draw = np.random.default_rng(seed)
        if self.trace:
            sizes = np.array([each[1:] for each in self.trace], dtype=float)
            sizes = sizes[draw.choice(len(sizes), count, p=sizes[:, 1] / sizes[:, 1].sum())]
        else:
            sizes = np.array([self.isl, self.osl]) * draw.uniform(1.0 - self.spread, 1.0 + self.spread, (count, 2))
        prompts, outputs = np.maximum(np.rint(sizes), 1).astype(int).T
        given = (outputs * draw.random(count)).astype(int)
        whole = [(int(p + g), int(o - g)) for p, g, o in zip(prompts, given, outputs, strict=True)]
        return [Request(-1 - index, tokens, left, tokens) for index, (tokens, left) in enumerate(whole)]


RANGES = {
    "isl": (1.0, 1e9),
    "osl": (1.0, 1e9),
    "rate": (1e-9, 1e9),
    "spread": (0.0, 0.99),
    "prefix": (0.0, 1.0),
    "burst": (1.0, 1e6),
    "seconds": (0.0, 1e12),
}
"""What each number of the traffic and of a trace may be."""
_SHORTEST, _LONGEST = 1e-9, 1e9
"""Seconds that a target may be, and the least that lies between the arrivals of a trace."""
_WHOLE = {"isl", "osl"}
"""Fields that count tokens."""
_LONGEST_TPOT, _SHORTEST_BARE = 5.0, {"ttft": 5e-3, "tpot": 5e-4}
"""Seconds for a token that nobody promises; and what nobody means by a number without a unit."""


def traffic_of(text: str) -> Traffic:
    """Traffic from words (`isl=1024,osl=512,rate=20`), or a trace: CSV or JSON of `seconds`, `isl` and `osl`."""
    if not text.strip():
        raise TrafficError("the traffic is empty", hint="isl=1024,osl=512,rate=20, or a file with a trace")
    if "=" not in text:
        return _trace(Path(text))
    found = Traffic()
    known, given = {each.name for each in fields(Traffic)} - {"trace"}, set[str]()
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in known:
            raise TrafficError(f"traffic has no field {name!r}", hint=f"fields are {', '.join(sorted(known))}")
        if name in given:
            raise TrafficError(f"field {name!r} of the traffic is given twice", hint="give each field once")
        given.add(name)
        found = replace(found, **{name: _number(name, value)})
    return found


def _number(name: str, value: Any, location: str | None = None) -> float:
    """A field's number; what is none or out of the field's range is refused by name."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise TrafficError(f"{name!r} has to be a number, not {str(value)[:40]!r}", location=location)
    least, most = RANGES.get(name, (-math.inf, math.inf))
    if not least <= number <= most:
        hint = f"from {least:g} to {most:g}"
        raise TrafficError(
            f"field {name!r} of the traffic is {number:g}, which is out of its range",
            location=location,
            hint=f"{hint}; without it, the plan is for what one replica serves" if name == "rate" else hint,
        )
    if name in _WHOLE and number != int(number):
        raise TrafficError(
            f"field {name!r} of the traffic is {number:g}, and tokens are whole",
            location=location,
            hint=f"{name}={max(round(number), 1)}",
        )
    return number


def _trace(path: Path) -> Traffic:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows: Any = json.loads(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TrafficError(
            f"the trace cannot be read: {error}", location=str(path), hint="or give isl=1024,osl=512,rate=20"
        ) from error
    if not isinstance(rows, list) or not rows:
        raise TrafficError("a trace is a list of requests", location=str(path))
    found: list[tuple[float, int, int]] = []
    listed: list[Any] = list(rows)  # pyright: ignore[reportUnknownArgumentType]
    for index, row in enumerate(listed):
        for name in ("seconds", "isl", "osl"):
            if not isinstance(row, dict) or name not in row:
                raise TrafficError(f"request {index} of the trace has no field {name!r}", location=str(path))
        place = f"{path}: request {index}"
        when, isl, osl = (_number(name, row[name], place) for name in ("seconds", "isl", "osl"))
        found.append((when, int(isl), int(osl)))
    found.sort()
    span = found[-1][0] - found[0][0]
    if span < _SHORTEST:
        told = "one request" if len(found) == 1 else f"{len(found):,} requests, all at second {found[0][0]:g}"
        raise TrafficError(
            f"field 'seconds' of the trace gives no rate: it has {told}",
            location=str(path),
            hint="a trace needs requests at two times at least; or give isl=1024,osl=512,rate=20",
        )
    isls, osls = [a for _, a, _ in found], [b for _, _, b in found]
    rate = (len(found) - 1) / span
    return Traffic(sum(isls) / len(found), sum(osls) / len(found), rate, trace=tuple(found))


@dataclass(frozen=True)
class Targets:
    """What a user is promised, in seconds; infinite where nothing is."""

    ttft: float = math.inf
    tpot: float = math.inf


def targets_of(text: str) -> Targets:
    """Targets from words: `ttft=500ms,tpot=0.03s`; without a unit, milliseconds."""
    found: dict[str, float] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.strip().partition("=")
        if not equals or name not in ("ttft", "tpot"):
            raise TrafficError(f"there is no target {name!r}", hint="targets are ttft and tpot: ttft=500ms,tpot=30ms")
        if name in found:
            raise TrafficError(f"target {name!r} is given twice", hint="give each target once")
        found[name] = _seconds(name, value.strip())
    return Targets(**found)


def _seconds(name: str, value: str) -> float:
    """A target in seconds; what nobody means, as most likely another unit was meant, is refused."""
    unit = next((each for each in ("ms", "us", "s") if value.endswith(each)), "")
    number = _number(name, value.removesuffix(unit))
    seconds = number * {"ms": 1e-3, "us": 1e-6, "s": 1.0, "": 1e-3}[unit]
    if not _SHORTEST <= seconds <= _LONGEST:
        raise TrafficError(
            f"target {name!r} is {seconds:g} s, which is out of its range",
            hint=f"above zero: from {_SHORTEST:g} s to {_LONGEST:g} s",
        )
    if not unit and seconds < _SHORTEST_BARE[name]:
        raise TrafficError(
            f"target {name!r} is {number:g} without a unit, which is {seconds * 1e3:g} ms",
            hint=f"{name}={number:g}s, or {name}={number:g}ms if it is meant",
        )
    if name == "tpot" and seconds > _LONGEST_TPOT:
        meant = f"tpot={number:g}ms" if unit == "s" else f"tpot={number / 1e3:g}ms"
        raise TrafficError(
            f"target 'tpot' is {seconds:g} s for each token, above {_LONGEST_TPOT:g} s",
            hint=f"{meant}, or leave it out: it is no limit",
        )
    return seconds
