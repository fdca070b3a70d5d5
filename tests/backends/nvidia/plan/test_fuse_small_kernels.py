"""Small kernels that need each other and become one block: what they compute, and which stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.backends.nvidia.ir.dialect import APART, BarrierOp, integer
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.plan import fuse_small_kernels as chain
from weft.backends.nvidia.plan.fuse_small_kernels import fuse_small_kernels
from weft.backends.nvidia.target import target_named
from weft.ir.types import bf16
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep
from weft.pipelines import compile_kernels
from weft.tile import dialect as tile

from ..emulated_graphs import emulated
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import planned
from .test_fuse_horizontally import run

TARGET = target_named("sm_90a")


def chained(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Planned, list[str]]:
    """What a function becomes, and the kernels that it was."""
    found = planned(function, *shapes)
    before = [step.function for step in found.plan.steps if isinstance(step, KernelStep)]
    fuse_small_kernels(found, TARGET, nvidia_kernel_passes())
    return found, before


def kernels(found: Planned) -> list[tile.KernelOp]:
    return [found.kernels[step.function] for step in found.plan.steps if isinstance(step, KernelStep)]


def barriers(kernel: tile.KernelOp) -> int:
    return sum(isinstance(op, BarrierOp) for op in kernel.walk())


def same_as_before(function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    """A chain gives the same bits."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(bf16.numpy) for shape in shapes]
    expected = run(planned(function, *shapes), inputs)
    found, _ = chained(function, *shapes)
    for actual, wanted in zip(run(found, inputs), expected, strict=True):
        np.testing.assert_array_equal(actual.view(np.int16), wanted.view(np.int16))


def down(x: Tensor) -> Tensor:
    """Each kernel needs all of the one before it: rows, then columns, then rows."""
    turned = (x / x.float().sum(1, keepdim=True)).to(x.dtype).t()
    return (turned / turned.float().sum(1, keepdim=True)).flip(0).sum(1)


def test_kernels_that_need_each_other_are_one() -> None:
    found, before = chained(down, (40, 24))
    (kernel,) = kernels(found)
    assert len(before) > 2 and barriers(kernel) == len(before) - 1
    assert 1 < integer(kernel, APART) <= 32 and found.kernels.keys() == {kernel.sym_name.data}
    (step,) = found.plan.steps
    assert isinstance(step, KernelStep) and step.buffers == (*found.plan.inputs, *found.plan.outputs)
    assert sum(isinstance(op, ScratchOp) for op in kernel.block.ops) == len(before) - 1
    same_as_before(down, (40, 24))


def test_kernels_that_need_the_same_one_wait_once() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.softmax(x.float(), -1)
        return made.flip(0).sum(1), made.t().amax(1)

    found, before = chained(both, (6, 10))
    (kernel,) = kernels(found)
    assert 0 < barriers(kernel) < len(before) - 1
    same_as_before(both, (6, 10))


def test_more_than_a_block_shares_is_in_global_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "_MOST_SHARED", 0)
    found, before = chained(down, (40, 24))
    (step,) = found.plan.steps
    assert isinstance(step, KernelStep) and len(step.buffers) == 1 + len(before)
    same_as_before(down, (40, 24))


def test_no_more_warps_than_programs() -> None:
    grids = [step.grid for step in planned(down, (5, 20)).plan.steps if isinstance(step, KernelStep)]
    found, _ = chained(down, (5, 20))
    assert [integer(kernel, APART) for kernel in kernels(found)] == [max(g for g in grids if isinstance(g, int))]
    same_as_before(down, (5, 20))


def around(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Something large stands between two small ones that do not need it."""
    small = torch.softmax(x.float(), -1).flip(0)
    return y * small.amax(), small.sum(0)


def test_what_is_large_comes_behind() -> None:
    found, before = chained(around, (4, 8), (2048, 4096))
    first, *others = kernels(found)
    assert len(before) > 2 and integer(first, APART) and others
    assert not any(integer(other, APART) for other in others)


def test_what_needs_something_large_comes_behind_it() -> None:
    def through(x: Tensor, y: Tensor) -> Tensor:
        return (y * torch.softmax(x.float(), -1).flip(0).amax()).float().sum(1)[:8].flip(0).softmax(0)

    found, before = chained(through, (4, 8), (2048, 4096))
    large = [not integer(kernel, APART) for kernel in kernels(found)]
    assert len(large) <= len(before) and any(large)
    places = {n: place for place, step in enumerate(found.plan.steps) for n in step.buffers}  # type: ignore[union-attr]
    assert places[found.plan.outputs[0]] == len(found.plan.steps) - 1


@pytest.mark.parametrize("shape", [(4096, 64), (8, 65536), (128, 256)])
def test_large_kernels_stay(shape: tuple[int, ...]) -> None:
    found, before = chained(lambda x: torch.softmax(x.float(), -1).flip(0).sum(1), shape)
    assert len(found.plan.steps) == len(before)


def test_kernels_that_read_much_at_once_stay() -> None:
    """A full block has 64 registers a thread."""

    def update(*tensors: Tensor) -> Tensor:
        made = sum((each * each.abs() for each in tensors[1:]), tensors[0].exp())
        return torch.as_tensor(made).flip(0).exp().flip(0)

    found, before = chained(update, *[(32, 256)] * 6)
    assert len(found.plan.steps) == len(before)


def route(x: Tensor, router: Tensor, chosen: int = 2) -> tuple[Tensor, ...]:
    """What comes before the products of a layer of experts."""
    experts = router.shape[0]
    weights, indices = torch.topk(torch.softmax((x @ router.t()).float(), -1), chosen, dim=-1)
    flat = indices.flatten()
    order = torch.argsort(flat, stable=True)
    ends = (flat[:, None] == torch.arange(experts)).sum(0).cumsum(0).to(torch.int32)
    return (weights / weights.sum(-1, keepdim=True)).flatten()[order], order // chosen, ends, x[order // chosen]


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_routes_of_tokens(tokens: int) -> None:
    drawn = torch.Generator().manual_seed(tokens)
    x, router = torch.randn(tokens, 32, generator=drawn), torch.randn(6, 32, generator=drawn)
    torch.testing.assert_close(emulated(route)(x, router), route(x, router))


@needs_ptxas
def test_chains_assemble() -> None:
    found, _ = chained(down, (40, 24))
    assert not assemble(compile_kernels(found.kernels, TARGET).ptx, TARGET.arch).error


def test_a_small_kernel_that_is_alone_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(chain, "annotate", never)
    found, before = chained(lambda x: x.exp(), (4, 8))
    assert [step.function for step in found.plan.steps if isinstance(step, KernelStep)] == before
