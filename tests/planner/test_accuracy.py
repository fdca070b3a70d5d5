"""How the planner is compared with measured services."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.planner.hardware import find_gpu
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model
from weft.planner.search import open_costs
from weft.planner.step_costs import step_costs
from weft.testing.planner_accuracy import Case, Errors, _rank  # pyright: ignore[reportPrivateUsage]

_H200 = find_gpu("h200")


def case(tp: int, rate: float, ttft_ms: float, tpot_ms: float) -> Case:
    costs = step_costs(rank_program(find_model("llama-3.2-1b"), Mapping()), open_costs(_H200, None, "weft"), "bfloat16")
    row: dict[str, Any] = {"ttft_ms": str(ttft_ms), "tpot_ms": str(tpot_ms)}
    return Case(row, _H200, Mapping(tp), costs, 1 << 20, 64, 1024.0, 101.0, 16, tpot_ms * 1e-3, rate)


def test_a_measured_rate_counts_the_time_to_the_first_token() -> None:
    found = case(2, 0.0, ttft_ms=1000.0, tpot_ms=10.0)
    assert found.measured_rate == pytest.approx(16 * 101 / 2.0 / 2)


def test_a_choice_loses_what_it_gives_less_than_the_best() -> None:
    quick = case(1, 2000.0, ttft_ms=100.0, tpot_ms=10.0)
    late = case(2, 1000.0, ttft_ms=3000.0, tpot_ms=4.0)  # the shorter TPOT, but most of a request is waiting
    mapped, ranked = Errors("mapping"), Errors("mapping and concurrency")
    _rank(mapped, ranked, "all", [(each, each.tpot) for each in (quick, late)])
    assert set(ranked.found["all"]) == {0.0}
    worse = [replace(quick, rate=500.0), late]
    mapped, ranked = Errors("mapping"), Errors("mapping and concurrency")
    _rank(mapped, ranked, "all", [(each, each.tpot) for each in worse])
    assert ranked.found["all"] == pytest.approx(
        [1 - late.measured_rate / quick.measured_rate] * len(ranked.found["all"])
    )
