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
        """Requests with their arrivals at a rate; of a trace, its own, at its own times scaled to the rate."""
        if self.trace:
            span = max(self.trace[-1][0] - self.trace[0][0], 1e-9)
            scale = (len(self.trace) / span) / rate
            taken = self.trace[:count]
            return (
                [Request(i, a, b, int(a * self.prefix)) for i, (_, a, b) in enumerate(taken)],
                [(when - taken[0][0]) * scale for when, _, _ in taken],
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


def traffic_of(text: str) -> Traffic:
    """Traffic from words (`isl=1024,osl=512,rate=20`), or a trace: CSV or JSON of `seconds`, `isl` and `osl`."""
    if "=" not in text:
        return _trace(Path(text))
    found = Traffic()
    known = {each.name for each in fields(Traffic)} - {"trace"}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in known:
            raise TrafficError(f"traffic has no field {name!r}", hint=f"fields are {', '.join(sorted(known))}")
        number = _number(name, value)
        least = {"isl": 1.0, "osl": 1.0, "burst": 1.0}.get(name, 0.0)
        most = {"prefix": 1.0, "spread": 0.99}.get(name, math.inf)
        if not least <= number <= most:
            raise TrafficError(
                f"field {name!r} of the traffic is {value}, which is out of its range",
                hint=f"from {least:g} to {most:g}",
            )
        found = replace(found, **{name: number})
    return found


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TrafficError(f"field {name!r} of the traffic has to be a number, not {value!r}")
    return number


def _trace(path: Path) -> Traffic:
    try:
        text = path.read_text(encoding="utf-8")
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
        when, isl, osl = (_number(name, row[name]) for name in ("seconds", "isl", "osl"))
        if when < 0 or isl < 1 or osl < 1:
            raise TrafficError(
                f"request {index} of the trace: 'seconds' is below 0, or 'isl' or 'osl' below 1", location=str(path)
            )
        found.append((when, int(isl), int(osl)))
    found.sort()
    span = found[-1][0] - found[0][0]
    isls, osls = [a for _, a, _ in found], [b for _, _, b in found]
    rate = len(found) / span if span > 0 else 0.0
    return Traffic(sum(isls) / len(found), sum(osls) / len(found), rate, trace=tuple(found))


@dataclass(frozen=True)
class Targets:
    """What a user is promised, in seconds; infinite where nothing is."""

    ttft: float = math.inf
    tpot: float = math.inf


def targets_of(text: str) -> Targets:
    """Targets from words: `ttft=500ms,tpot=30ms`; without a unit, milliseconds."""
    found: dict[str, float] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.strip().partition("=")
        if not equals or name not in ("ttft", "tpot"):
            raise TrafficError(f"there is no target {name!r}", hint="targets are ttft and tpot: ttft=500ms,tpot=30ms")
        scale = 1e-3
        for unit, factor in (("ms", 1e-3), ("s", 1.0)):
            if value.endswith(unit):
                value, scale = value.removesuffix(unit), factor
                break
        number = _number(name, value)
        if number <= 0:
            raise TrafficError(f"target {name!r} has to be above zero")
        found[name] = number * scale
    return Targets(**found)
