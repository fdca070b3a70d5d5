"""Epilogues by cost: fused where that saves a round trip, behind the matmul where it costs one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.lower.plan import Planned

from ...backends.nvidia.row_kernels import planned

ROWS, WIDTH = 8192, 768


def dots(found: Planned) -> list[str]:
    return [name for name in found.kernels if name.startswith("dot")]


def test_a_bias_and_a_residual_stay_on_the_accumulators() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor, residual: Tensor) -> Tensor:
        return x @ w + b + residual

    found = planned(function, (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (ROWS, WIDTH))
    (name,) = found.kernels
    assert name.startswith("dot_") and "add" in name
    assert "fused" in found.schedules[name] and "apart" in found.schedules[name]


def test_what_several_readers_need_wide_is_computed_behind_the_matmul() -> None:
    def function(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = (x @ w).float()
        scaled = product * y.float()
        return (product - scaled.sum(1, keepdim=True)).bfloat16(), scaled.sum(0), product.sum(0)

    found = planned(function, (ROWS, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH))
    (name,) = dots(found)
    assert "cast" not in name and len(found.kernels) == 3  # the product, the rows, and what adds up their sums


def test_an_operand_made_for_the_epilogue_alone_keeps_it_apart() -> None:
    def function(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
        wide = h.float()
        slope = 0.5 * (1 + torch.erf(wide * 0.7071)) + wide * torch.exp(-0.5 * wide * wide) * 0.3989
        return ((x @ w).float() * slope).bfloat16()

    found = planned(function, (ROWS, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH))
    (name,) = dots(found)
    assert "mul" not in name and len(found.kernels) == 2


def test_an_activation_of_the_product_alone_stays() -> None:
    found = planned(lambda x, w: F.relu(x @ w), (ROWS, WIDTH), (WIDTH, WIDTH))
    assert len(found.kernels) == 1
