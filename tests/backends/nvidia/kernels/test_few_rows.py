"""Gradients of few long rows with sums of their columns: one kernel for the rows and one for the columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.backends.nvidia.target import target_named
from weft.lower.groups.few_rows import are_rows_few
from weft.passes.grouping import kernel_groups
from weft.pipelines import compile_kernels
from weft.tile import dialect as tile

from ..emulated_graphs import emulated
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import planned


def gradient(dy: Tensor, x: Tensor, mean: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    wide, x = dy.double() if dy.dtype == torch.float64 else dy.float(), x - mean
    scaled = wide * weight
    dx = scaled - scaled.mean(-1, keepdim=True) - x * (scaled * x).mean(-1, keepdim=True)
    return dx.to(dy.dtype), (wide * x).sum(0), wide.sum(0)


def in_place(dy: Tensor, x: Tensor, mean: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    dx, *sums = gradient(dy, x, mean, weight)
    dy.copy_(dx)
    return tuple(sums)


def given(rows: int, columns: int) -> list[Tensor]:
    torch.manual_seed(rows)
    shapes = (rows, columns), (rows, columns), (rows, 1), (columns,)
    return [torch.randn(shape).bfloat16() for shape in shapes]


def assert_close(found: Tensor, exact: Tensor, allowed: float) -> None:
    assert (found.double() - exact).norm() <= allowed * exact.norm()


@pytest.mark.parametrize("columns", [2056, 3072])
def test_they_are_right_as_ptx(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)
    monkeypatch.setattr("weft.lower.groups.few_rows._WORTH", 0)
    tensors = given(19, columns)
    exact = gradient(*(each.double() for each in tensors))
    for found, wanted, allowed in zip(emulated(gradient)(*tensors), exact, (4e-3, 1e-5, 1e-5), strict=True):
        assert_close(found, wanted, allowed)


def test_what_is_written_over_is_summed_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)
    monkeypatch.setattr("weft.lower.groups.few_rows._WORTH", 0)
    tensors = given(19, 2048)
    dx, *exact = gradient(*(each.double() for each in tensors))
    for found, wanted in zip(emulated(in_place)(*tensors), exact, strict=True):
        assert_close(found, wanted, 1e-5)
    assert_close(tensors[0], dx, 4e-3)


@needs_ptxas
def test_programs_carry_no_sums_and_nothing_is_spilled() -> None:
    """300 rows of 9216 columns: the sums of 132 programs are 9.7 MB, written and read again, the rows 5.5 each."""
    rows = (300, 9216)
    plan = planned(gradient, rows, rows, (300, 1), (9216,))
    assert len(plan.kernels) == 2 and all(kernel.persistent is None for kernel in plan.kernels.values())
    (sums,) = [kernel for name, kernel in plan.kernels.items() if name.endswith("_sums")]
    loads = [op for op in sums.walk() if isinstance(op, tile.LoadOp)]
    assert all(tile.tile_type(op.out).sizes[0] in (1, 16) for op in loads)
    code = compile_kernels(plan.kernels, target_named("sm_90a"))
    assert all(each.spilled == 0 for each in assemble(code.ptx, "sm_90a").kernels.values())


@pytest.mark.parametrize(
    ("rows", "columns", "read", "programs", "sums", "few"),
    [
        pytest.param(300, 9216, 4, 132, 2, True, id="a layer norm's gradient in bf16"),
        pytest.param(8192, 8192, 4, 132, 2, False, id="many rows"),
        pytest.param(300, 768, 4, 75, 2, False, id="few bytes"),
        pytest.param(1024, 8192, 4, 132, 2, False, id="eight rows for each program"),
    ],
)
def test_rows_are_few_where_sums_are_more_bytes(
    rows: int, columns: int, read: int, programs: int, sums: int, few: bool
) -> None:
    assert are_rows_few(rows, columns, read, programs, sums) is few
