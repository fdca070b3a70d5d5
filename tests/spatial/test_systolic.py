"""The systolic array takes SCALE-Sim v3's cycles, and computes the product in them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.spatial.machine import SystolicMachine, load_machine
from weft.spatial.systolic import run_product, schedule_product
from weft.testing.spatial.scale_sim import OBLONG, SQUARE


def machine(rows: int = 128, columns: int = 128) -> SystolicMachine:
    made = load_machine("systolic128", {"array.rows": rows, "array.columns": columns})
    assert isinstance(made, SystolicMachine)
    return made


@pytest.mark.parametrize(("shape", "cycles"), SQUARE.items())
def test_a_square_array_takes_the_cycles_of_the_simulator(shape: tuple[int, int, int], cycles: int) -> None:
    assert schedule_product(machine(), *shape).last_cycle == cycles


@pytest.mark.parametrize(("shape", "cycles"), OBLONG.items())
def test_an_oblong_array_does_too(shape: tuple[int, int, int], cycles: int) -> None:
    assert schedule_product(machine(32, 64), *shape).last_cycle == cycles


def test_any_shape_follows_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    for rows, columns, m, k, n in rng.integers(1, 60, (50, 5)).tolist():
        expected = -(-k // rows) * -(-n // columns) * (2 * rows + columns + m - 2) - 1
        assert schedule_product(machine(rows, columns), m, k, n).last_cycle == expected


@pytest.mark.parametrize("shape", [(5, 4, 3), (3, 9, 7), (1, 1, 1), (6, 8, 11)])
def test_registers_compute_the_product_in_these_cycles(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(1)
    x, w = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
    schedule = schedule_product(machine(4, 3), m, k, n)
    product, last = run_product(schedule, x, w)
    np.testing.assert_array_equal(product, x @ w)
    assert last == schedule.last_cycle
