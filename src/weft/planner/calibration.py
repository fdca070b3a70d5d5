"""A user's own measured runs: two factors on the times of steps, told with how far off left-out runs still are.

Steps of few rows (decoding) and steps of many rows (prompts) are off by different amounts, so there is a factor for
each, and rows between 256 and 1,024 have one between them. Runs say `isl`, `osl`, `concurrency`, `tpot_ms`, where
it was measured `ttft_ms`, and the mapping (`tp`, `pp`, `dp`, `ep`: 1 unless given). Without a file nothing is fitted.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.planner.errors import CalibrationError
from weft.planner.mapping import Mapping
from weft.planner.op_costs import ROWS
from weft.planner.step_costs import Part, StepCosts
from weft.planner.tables import Array

_FEW, _MANY = 256.0, 1024.0
_TURNS = 6
_PRIOR = 0.05
"""How many runs the belief weighs that the tables are right: it holds a factor that no run says anything of at 1."""
_FOLDS = 10
_FIELDS = {"isl": (1, 1e8), "osl": (2, 1e8), "concurrency": (1, 1e6), "tpot_ms": (1e-3, 1e7)}
_SIZES = ("tp", "pp", "dp", "ep")


@dataclass(frozen=True)
class Run:
    """One measured run of a replica; times in seconds, `ttft` NaN where it was not measured."""

    mapping: Mapping
    isl: float
    osl: float
    concurrency: float
    tpot: float
    ttft: float = math.nan


@dataclass(frozen=True)
class Calibration:
    """Factors on steps of few and of many rows, and the mean error of runs before and, left out, after."""

    few: float
    many: float
    runs: int
    before: float
    after: float
    source: str = ""

    def __str__(self) -> str:
        told = f"{self.after * 100:.1f} % left out" if math.isfinite(self.after) else "one run: not left out"
        return (
            f"calibrated with {self.runs} runs ({self.source}): decoding × {self.few:.3f}, prompts × {self.many:.3f}; "
            f"their error was {self.before * 100:.1f} %, and is {told}"
        )

    def apply(self, costs: StepCosts) -> StepCosts:
        """A mapping's times with the factors on them."""
        return scaled(costs, self.few, self.many)


def scaled(costs: StepCosts, few: float, many: float) -> StepCosts:
    """Times of steps of few rows and of many, each with a factor of its own."""
    share = np.clip(np.log(ROWS / _FEW) / np.log(_MANY / _FEW), 0.0, 1.0)
    rows: Array = few ** (1 - share) * many**share
    by_axis: dict[str, Any] = {
        "tokens": rows, "experts": rows, "sequences": rows,
        "decode": few, "decode attention": few, "prefill": many, "prefill attention": many,
    }  # fmt: skip

    def part(each: Part) -> Part:
        return replace(each, seconds=each.seconds * by_axis[each.axis])

    return replace(
        costs,
        tokens=costs.tokens * rows,
        experts=costs.experts * rows,
        sequences=costs.sequences * rows,
        decode=costs.decode * few,
        prefill=costs.prefill * many,
        decode_attention=costs.decode_attention * few,
        prefill_attention=costs.prefill_attention * many,
        parts=tuple(part(each) for each in costs.parts),
    )


def read_runs(path: Path) -> list[Run]:
    """Runs from CSV with a header, or a JSON list of objects; a field that is missing or wrong is named."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows: Any = json.loads(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CalibrationError(f"the runs cannot be read: {error}", location=str(path)) from error
    if not isinstance(rows, list) or not rows:
        raise CalibrationError(
            "there are no runs", location=str(path), hint=f"a line each, with {', '.join(_FIELDS)} and the mapping"
        )
    listed: list[Any] = list(rows)  # pyright: ignore[reportUnknownArgumentType]
    return [_run(row, f"{path}: run {index}") for index, row in enumerate(listed)]


def _run(row: Any, place: str) -> Run:
    if not isinstance(row, dict):
        raise CalibrationError("a run is an object of fields", location=place)
    given: dict[str, Any] = dict(row)  # pyright: ignore[reportUnknownArgumentType]
    found = {name: _number(given.get(name), name, place, *bounds) for name, bounds in _FIELDS.items()}
    sizes = {
        name: int(_number(given[name], name, place, 1, 1e6)) if given.get(name) not in (None, "") else 1
        for name in _SIZES
    }
    mapping = Mapping(sizes["tp"], sizes["pp"], sizes["dp"], max(1, sizes["tp"] // sizes["ep"]), sizes["ep"])
    first = given.get("ttft_ms")
    ttft = _number(first, "ttft_ms", place, 1e-3, 1e9) * 1e-3 if first not in (None, "") else math.nan
    return Run(mapping, found["isl"], found["osl"], found["concurrency"], found["tpot_ms"] * 1e-3, ttft)


def _number(value: Any, name: str, place: str, least: float, most: float) -> float:
    if value in (None, ""):
        raise CalibrationError(f"the run has no field {name!r}", location=place)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise CalibrationError(
            f"field {name!r} is {str(value)[:40]!r}", location=place, hint=f"a number from {least:g} to {most:g}"
        )
    return number


Predict = Callable[[Run, float, float], tuple[float, float]]
"""TPOT and TTFT of a run with the two factors."""


def calibrate(runs: Sequence[Run], predict: Predict, source: str) -> Calibration:
    """The factors that bring runs and predictions together, by least squares of logarithms."""
    few, many = _fit(runs, predict)
    errors: list[float] = []
    folds = min(len(runs), _FOLDS)
    if folds > 1:
        for fold in range(folds):
            out = [run for index, run in enumerate(runs) if index % folds == fold]
            factors = _fit([run for index, run in enumerate(runs) if index % folds != fold], predict)
            errors += [abs(math.expm1(each)) for run in out for each in _off(run, predict, *factors)]
    before = [abs(math.expm1(each)) for run in runs for each in _off(run, predict, 1.0, 1.0)]
    after = float(np.mean(errors)) if errors else math.nan
    return Calibration(few, many, len(runs), float(np.mean(before)), after, source)


def _off(run: Run, predict: Predict, few: float, many: float) -> list[float]:
    tpot, ttft = predict(run, few, many)
    off = [math.log(tpot / run.tpot)]
    return off if math.isnan(run.ttft) else [*off, math.log(ttft / run.ttft)]


def _fit(runs: Sequence[Run], predict: Predict) -> tuple[float, float]:
    logs = np.zeros(2)
    for _ in range(_TURNS):
        base = np.array([each for run in runs for each in _off(run, predict, *np.exp(logs))])
        slopes: list[Array] = []
        for index in range(2):
            moved = logs.copy()
            moved[index] += 0.02
            slopes.append((np.array([e for run in runs for e in _off(run, predict, *np.exp(moved))]) - base) / 0.02)
        matrix = np.stack(slopes, axis=1)
        normal = matrix.T @ matrix + _PRIOR * np.eye(2)
        logs = np.clip(logs - np.linalg.solve(normal, matrix.T @ base + _PRIOR * logs), -2.0, 2.0)
    return float(np.exp(logs[0])), float(np.exp(logs[1]))
