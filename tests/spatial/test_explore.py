"""Variants of a machine: every combination is scheduled, and the front holds what nothing beats."""

from __future__ import annotations

import numpy as np
import pytest

from weft.spatial.energy import energy_of
from weft.spatial.explore import Variant, area_of, explore, page_of, pareto_front
from weft.spatial.machine import MachineError, streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.tile.text import functions_of, parse_program

TEXT = """
"graph.func"() ({
^bb0(%x: tensor<64x320xi8>, %w: tensor<320x320xi8>):
  %0 = "graph.dot"(%x, %w) {dtype = i32} : (tensor<64x320xi8>, tensor<320x320xi8>) -> tensor<64x320xi32>
  "graph.return"(%0) : (tensor<64x320xi32>) -> ()
}) {sym_name = "product", arg_names = ["x", "w"]} : () -> ()
"""
WEIGHTS = {"w": np.ones((320, 320), np.int8)}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_combination_is_scheduled(workers: int) -> None:
    vary = {"latency.multiply": [8, 16], "memory.bank_words": [8, 4096]}
    found = explore(TEXT, WEIGHTS, "tsp1", vary, workers)
    assert [tuple(each.overrides.values()) for each in found] == [(8, 8), (8, 4096), (16, 8), (16, 4096)]
    assert found[1].cycles == found[3].cycles - 8
    assert "words" in found[0].problem


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(MachineError, match="bank_wrods"):
        explore(TEXT, WEIGHTS, "tsp1", {"memory.bank_wrods": [1]}, 1)


def test_the_front_holds_what_nothing_beats() -> None:
    figures = [(1.0, 3.0, 1.0), (2.0, 2.0, 1.0), (2.0, 3.0, 1.0), (3.0, 1.0, 1.0)]
    variants = [Variant({}, time, 1, area, joules) for time, area, joules in figures]
    assert pareto_front([*variants, Variant({}, problem="too small")]) == [0, 1, 3]
    assert page_of("a < b", variants).count("<circle") == 4


def test_energy_is_activity_times_the_table() -> None:
    tsp1 = streaming_machine("tsp1")
    program = compile_graph(functions_of(parse_program(TEXT))[0], tsp1, WEIGHTS)
    assert energy_of(program)["MXM"] == pytest.approx(64 * 320 * 320 * 0.3e-12)
    assert area_of(tsp1) == pytest.approx((230_686_720 * 48 + 409_600 * 1000) / 1e6)
