"""What multiplies tiles on each GPU, and which products it takes."""

from __future__ import annotations

import pytest

from weft.backends.nvidia.matmul_unit import MMA, WGMMA
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, bf16, f8e4m3, f32, i8, i32


@pytest.mark.parametrize(("arch", "units"), [("sm_80", (MMA,)), ("sm_90a", (WGMMA, MMA)), ("sm_100a", (MMA,))])
def test_units_of_a_target_the_best_first(arch: str, units: tuple[object, ...]) -> None:
    target = target_named(arch)
    assert target.matmul_units == units and target.matmul_unit("registers") == MMA
    assert target.matmul_unit("shared") == (WGMMA if WGMMA in units else None)


def test_where_operands_come_from() -> None:
    assert WGMMA.reads_from("shared") and not MMA.reads_from("shared")
    assert "registers" in WGMMA.left and "registers" not in WGMMA.right


@pytest.mark.parametrize(
    ("dtype", "columns", "depth", "taken"),
    [
        (bf16, 256, 64, True),
        (bf16, 264, 64, False),
        (bf16, 60, 64, False),
        (bf16, 64, 8, False),
        (f8e4m3, 64, 32, True),
        (i8, 24, 32, False),
        (i8, 32, 32, True),
        (f32, 64, 64, False),
    ],
)
def test_products_that_wgmma_takes(dtype: DType, columns: int, depth: int, taken: bool) -> None:
    assert WGMMA.takes(dtype, columns, depth) == taken


def test_warp_groups_that_share_rows_have_registers_for_them() -> None:
    assert WGMMA.holds(128, 256, 2) and WGMMA.holds(64, 256, 1)
    assert not WGMMA.holds(128, 256, 1) and not WGMMA.holds(64, 64, 2)


def test_a_dot_is_made_into_sums_of_one_type() -> None:
    assert WGMMA.makes(bf16, f32, (128, 256, 64), 2)
    assert not WGMMA.makes(bf16, bf16, (128, 256, 64), 2)
    assert WGMMA.makes(i8, i32, (128, 128, 64), 2) and not WGMMA.makes(i8, f32, (128, 128, 64), 2)
    assert WGMMA.registers_of(256) == MMA.registers_of(256) == 128


@pytest.mark.parametrize(("arch", "lacks"), [("sm_80", 2), ("sm_89", 1), ("sm_90a", 0)])
def test_a_target_says_what_it_lacks(arch: str, lacks: int) -> None:
    target = target_named(arch)
    assert len(target.lacks) == lacks
    assert target.has_tma == target.has_programmatic_launch == (lacks == 0)
