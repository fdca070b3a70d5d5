"""Kernels that reduce several tensors: all are asked for before threads wait for each other."""

from __future__ import annotations

from torch import Tensor

from weft.backends.nvidia.target import target_named
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..row_kernels import planned, row_kernel

TARGET = target_named("sm_90a")


def kinds(kernel: tile.KernelOp) -> list[str]:
    """Loads and reductions of a kernel in their order."""
    annotated, _ = annotate(kernel, TARGET)
    return [op.name.split(".")[1] for op in annotated.walk() if isinstance(op, tile.LoadOp | tile.ReduceOp)]


def norm_gradient(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    scaled = dy.float() * weight
    return (scaled - x * (scaled * x).mean(-1, keepdim=True)).bfloat16(), (dy * x).sum(0), dy.float().sum(0)


def test_the_sums_of_two_vectors_wait_for_memory_once() -> None:
    plan = planned(norm_gradient, (8192, 768), (8192, 768), (768,))
    (name,) = [name for name in plan.kernels if name.endswith("_sums")]
    assert kinds(plan.kernels[name]) == ["load", "load", "reduce", "reduce"]


def test_what_is_needed_behind_a_reduction_as_well_stays_where_it_is() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / x.float().square().sum(-1, keepdim=True) * weight

    assert kinds(row_kernel(norm, (64, 512), (512,))) == ["load", "reduce", "load"]


def test_more_than_registers_hold_is_asked_for_later() -> None:
    def three(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return *norm_gradient(dy, x, weight), x.float().sum(0)

    plan = planned(three, (8192, 768), (8192, 768), (768,))
    (name,) = [name for name in plan.kernels if name.endswith("_sums")]
    assert kinds(plan.kernels[name]) == ["load", "load", "reduce", "reduce", "load", "reduce"]
